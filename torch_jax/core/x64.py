"""JAX's 64-bit types, switched on around the project's own work and nowhere else."""

from __future__ import annotations

from typing import Any

from torch_jax._private import pytorch
from torch_jax.core import forks

_state = pytorch.x64_state()


class x64:
    """Context in which JAX keeps int64 and float64; the caller's own setting returns after it.

    >>> import jax.numpy as jnp
    >>> with x64():
    ...     print(jnp.arange(2).dtype)
    int64
    """

    def __enter__(self) -> None:
        self._old: Any = _state.swap_local(True)

    def __exit__(self, *_exception: object) -> None:
        _state.set_local(self._old)


def _refuse_in_child() -> None:
    """All of the project's own work comes by here, but for compiled calls that are hot."""
    x64.__enter__ = forks.refuse  # type: ignore[method-assign]


forks.listeners.append(_refuse_in_child)
