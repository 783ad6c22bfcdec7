"""Single operators as executables: one for each key of calls, fully optimised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from torch_jax._private import jax_core
from torch_jax.budgets import CALLS_BEFORE_DIRECT
from torch_jax.compiler import options
from torch_jax.compiler.direct import direct


class Compiled:
    """A function of arrays, which XLA compiles at its first call.

    Attributes:
      plain: the function to call within a trace, where XLA's options belong to the outermost
        program.
      call: the function to call outside of one. After some calls it is replaced, and ``changed`` is
        called with the new one.
    """

    __slots__ = ("call", "changed", "plain")

    def __init__(self, function: Callable[..., Any]):
        self.plain = jax.jit(function)
        self.changed: Callable[[], Any] | None = None
        self.call = self._counting(jax.jit(function, compiler_options=options.operator()))

    def _counting(self, jitted: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that counts its calls, and later calls the executable directly."""
        left = CALLS_BEFORE_DIRECT

        def call(*args: Any) -> Any:
            nonlocal left
            result = jitted(*args)
            left -= 1
            if left == 0:
                self._goes_on(direct(jitted, args, self._goes_on))
            return result

        return call

    def _goes_on(self, call: Callable[..., Any]) -> None:
        """Call this from here on."""
        self.call = call
        if self.changed is not None:
            self.changed()


class Untraced:
    """A function that runs outside ``jax.jit``, in the form of :class:`Compiled`."""

    def __init__(self, function: Callable[..., Any]):
        self.call = self.plain = function
        self.changed: Callable[[], Any] | None = None


def here(compiled: Compiled | Untraced) -> Callable[..., Any]:
    """Return the function to call: within a trace the plain one."""
    return compiled.call if jax_core.is_outside_traces() else compiled.plain
