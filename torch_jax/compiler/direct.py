"""Operators called often go straight to XLA's executable, past the checks of ``jax.jit``.

At each call ``jax.jit`` flattens the arguments, collects the settings that a trace depends on and
looks up the executable. An operator that has been looked up by its own key needs little of that:
its arguments must be arrays of the compiled types, and no trace, debugger or profiler may be
active. XLA itself refuses arrays of other devices. All other calls take the usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_jax._private import jax_core
from torch_jax.budgets import CALLS_BEFORE_DIRECT, DESCRIPTIONS_OF_AN_ARGUMENT
from torch_jax.core.x64 import x64

Call = Callable[..., Any]


class _Alike:
    """The ids of JAX's descriptions of one type, which stay alive with this."""

    def __init__(self, aval: Any):
        self._aval, self.ids = aval, {id(aval): aval}

    def takes(self, aval: Any) -> bool:
        """Return whether a description is of the type, and remember its id if so."""
        if aval != self._aval:
            return False
        if len(self.ids) < DESCRIPTIONS_OF_AN_ARGUMENT:
            self.ids[id(aval)] = aval
        return True


_DIRECT = "calls_the_executable"


def needs_no_x64(call: Call) -> bool:
    """Return whether a function is one that :func:`direct` has made."""
    return hasattr(call, _DIRECT)


def direct(jitted: Call, args: tuple, give_up: Callable[[Call], Any]) -> Call:
    """Return a function that calls the executable of ``jitted`` for arguments like these.

    Args:
      jitted: the function, called with such arguments before, so that nothing is compiled.
      args: arrays and numbers.
      give_up: called with ``jitted`` when the executable should not be tried again.

    Returns:
      A function of the same arguments, which may be called under any setting of JAX's 64-bit flag;
      ``jitted`` itself where this release of JAX, or the program, needs more than buffers.
    """
    at_rest = jax_core.rest_of_traces()
    found = _executable(jitted, args) if jax_core.is_outside_traces() else None
    if found is None or at_rest is None:
        return jitted
    execute, handlers, avals, is_list = found
    state, rest, nans, infs, profile = at_rest
    misses = 0
    types = [_Alike(aval) for aval in avals]

    def otherwise(*args: Any) -> Any:
        """Run a call whose arguments have not been seen before."""
        nonlocal misses
        if state.value is rest and not (nans.value or infs.value or profile.profile_session):
            try:
                if all(kind.takes(a.aval) for kind, a in zip(types, args, strict=True)):
                    results = execute(args).consume_with_handlers(handlers)
                    return results if is_list else results[0]
                misses += 1
            except (TypeError, AttributeError):  # no array of JAX's, or one of a trace
                misses += 1
            except Exception:  # XLA raises this again below
                misses = CALLS_BEFORE_DIRECT
            if misses >= CALLS_BEFORE_DIRECT:
                give_up(jitted)
        with x64():
            return jitted(*args)

    if is_list or len(avals) not in (1, 2):
        return _marked(_several(found, types, at_rest, otherwise))
    first, last = types[0].ids, types[-1].ids

    def one(a: Any) -> Any:
        if state.value is rest and not (nans.value or infs.value or profile.profile_session):
            try:
                if id(a.aval) in first:
                    return execute((a,)).consume_with_handlers(handlers)[0]
            except Exception:
                pass
        return otherwise(a)

    def two(a: Any, b: Any) -> Any:
        if state.value is rest and not (nans.value or infs.value or profile.profile_session):
            try:
                if id(a.aval) in first and id(b.aval) in last:
                    return execute((a, b)).consume_with_handlers(handlers)[0]
            except Exception:
                pass
        return otherwise(a, b)

    return _marked(one if len(avals) == 1 else two)


def _marked(call: Call) -> Call:
    setattr(call, _DIRECT, True)
    return call


def _executable(jitted: Call, args: tuple) -> tuple | None:
    try:
        with x64():
            return jax_core.executable_of(jitted, args)
    except Exception:  # deleted arguments, or no arrays; the usual call raises
        return None


def _several(found: tuple, types: list[_Alike], at_rest: tuple, otherwise: Call) -> Call:
    """Return ``one`` and ``two`` of :func:`direct` for any number of arguments and results."""
    execute, handlers, _, is_list = found
    state, rest, nans, infs, profile = at_rest
    known = [kind.ids for kind in types]

    def several(*args: Any) -> Any:
        if state.value is rest and not (nans.value or infs.value or profile.profile_session):
            try:
                for array, ids in zip(args, known, strict=True):
                    if id(array.aval) not in ids:
                        break
                else:
                    results = execute(args).consume_with_handlers(handlers)
                    return results if is_list else results[0]
            except Exception:
                pass
        return otherwise(*args)

    return several
