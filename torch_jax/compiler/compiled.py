"""Single operators as executables: one for each key of calls, fully optimised."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from torch_jax._private import jax_core
from torch_jax.compiler import options


class Compiled:
    """A function of arrays, which XLA compiles at its first call."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    @functools.cached_property
    def call(self) -> Callable[..., Any]:
        """Return the function to call outside of a trace."""
        return jax.jit(self._function, compiler_options=options.operator())

    @functools.cached_property
    def plain(self) -> Callable[..., Any]:
        """Return the function to call within a trace, whose program has XLA's options."""
        return jax.jit(self._function)


class Untraced:
    """A function that runs outside ``jax.jit``, in the form of :class:`Compiled`."""

    def __init__(self, function: Callable[..., Any]):
        self.call = self.plain = function


def here(compiled: Compiled | Untraced) -> Callable[..., Any]:
    """Return the function to call: within a trace the plain one."""
    return compiled.call if jax_core.is_outside_traces() else compiled.plain
