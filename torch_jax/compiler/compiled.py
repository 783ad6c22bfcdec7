"""Single operators as executables: one for each key of calls, fully optimised."""

from __future__ import annotations

import functools
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
      call: the function to call outside of a trace. After some calls it is replaced, and
        ``changed`` is called with the new one.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self.changed: Callable[[], Any] | None = None
        self.call: Callable[..., Any] = self._begin

    @functools.cached_property
    def plain(self) -> Callable[..., Any]:
        """Return the function to call within a trace, whose program has XLA's options."""
        return jax.jit(self._function)

    def _begin(self, *args: Any) -> Any:
        jitted = jax.jit(self._function, compiler_options=options.operator())
        self.call = self._counting(jitted)
        return self.call(*args)

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
