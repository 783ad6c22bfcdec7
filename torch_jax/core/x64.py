"""JAX's 64-bit types, switched on around the project's own work and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch_jax._private import jax_core
from torch_jax.core import forks

_state = jax_core.x64_state()


class x64:
    """Context in which JAX keeps int64 and float64; the caller's own setting returns after it.

    >>> import jax.numpy as jnp
    >>> with x64():
    ...     print(jnp.arange(2).dtype)
    int64
    """

    _on = True

    def __enter__(self) -> None:
        self._old: Any = _state.get_local()
        try:
            _state.set_local(self._on)
        except BaseException:  # a signal's: the block is not entered, and will not be left
            _state.set_local(self._old)
            raise

    def __exit__(self, *_exception: object) -> None:
        _state.set_local(self._old)


class x64_as(x64):
    """Context in which JAX keeps 64-bit types, or has 32-bit ones in their place, on this thread.

    >>> import jax.numpy as jnp
    >>> with x64_as(False):
    ...     print(jnp.arange(2).dtype)
    int32
    """

    def __init__(self, on: bool):
        self._on = on


def before_each(check: Callable[[], None]) -> None:
    """Call ``check``, which may raise or wait, before all further work in this process."""
    enter = x64.__enter__  # which all of the project's own work enters by

    def check_and_enter(self: x64) -> None:
        check()
        enter(self)

    x64.__enter__ = check_and_enter  # type: ignore[method-assign]


forks.listeners.append(functools.partial(before_each, forks.refuse))
