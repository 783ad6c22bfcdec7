"""The computation of an eager kernel's entry, as a jaxpr, and its check of indices by itself."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from torch_jax._private import jax_core
from torch_jax._private.jaxprs import core
from torch_jax.compiler import options
from torch_jax.core import signals
from torch_jax.core.active import unrecorded
from torch_jax.core.node import Node, NotRecordable
from torch_jax.core.x64 import x64
from torch_jax.memory import windows
from torch_jax.recorded.path import Constant, Step


class Part:
    """Some results of an entry by themselves: an entry of its own, too, for recordings."""

    maker, slots, check, simple, key, on_host = False, (), (), False, (), None

    def __init__(self, closed: Any, outputs: Iterable[int]):
        self.jaxpr, used = jax_core.with_outputs(closed, outputs)
        self.outs = _outs(self.jaxpr)
        # the places of those operands of the entry that it takes
        self.operands = tuple(at for at, is_used in enumerate(used) if is_used)
        plain = core.jaxpr_as_fun(self.jaxpr)
        call = jax.jit(plain, compiler_options=options.operator())
        self.run = SimpleNamespace(plain=plain, call=call)
        self.serial = f"part {next(_serials)}"
        self.bodies: dict[tuple[Any, ...], Body] = {}

    def of(self, operands: Sequence[Any]) -> list[Any]:
        """Return those of the entry's operands that it takes."""
        return [operands[at] for at in self.operands]


_serials = itertools.count()
Out = tuple[Any, tuple[int, ...], Any]  # the aval, shape and dtype of a result


class Body:
    """The function of an entry, for operands of given forms, as JAX traces it."""

    def __init__(self, entry: Any, avals: tuple[Any, ...]):
        """Trace. Signals wait, since several ``except:`` of JAX's would swallow a Ctrl-C."""
        try:
            closed = signals.undisturbed(_traced, entry.run.plain, avals)
        except Exception as error:  # the operator, run at once, raises what it raises eagerly
            raise NotRecordable from error
        self.check: Part | None = None  # gives whether the operands are in range
        if entry.check:  # which the trace has filled
            flag = len(closed.out_avals) - 1
            self.check = Part(closed, [flag])
            closed = jax_core.with_outputs(closed, range(flag), all_inputs=True)[0]
        self.jaxpr, self.outs, self._avals = closed, _outs(closed), avals  # without the check

    @functools.cached_property
    def maker(self) -> Part | None:
        """The part that makes all results of numbers alone, if any; counts may bound indices."""
        made = Part(self.jaxpr, range(len(self.outs)))
        counts = "iota" in str(made.jaxpr.jaxpr)
        return None if counts or any(self._avals[at].shape for at in made.operands) else made


def body_of(entry: Any, memories: Sequence[Any]) -> Body:
    """Return the body of an entry for memories like these."""
    avals = tuple(map(_aval_of, memories))
    if (body := entry.bodies.get(avals)) is None:
        body = entry.bodies[avals] = Body(entry, avals)
    return body


def _aval_of(memory: Any) -> Any:
    """Return JAX's description of an operand; Python numbers are weakly typed, and 64 bits wide."""
    operand = memory if type(memory) is Node else windows.operand(memory)
    if type(operand) is Node or isinstance(operand, jax.Array):
        return operand.aval
    if isinstance(operand, np.ndarray | np.generic):
        return jax.core.ShapedArray(operand.shape, operand.dtype)
    kind = float if isinstance(operand, float) else type(operand)
    return jax.core.ShapedArray((), np.dtype(kind), weak_type=kind is not bool)


def beginning_at(step: Step) -> Any:
    """Return the jaxpr of an operator, with the starts of views as constants where they are known.

    It takes these operands, too, and does not look at them. XLA fuses a slice with what follows,
    and copies one that begins at an operand.
    """
    entry, body, sources = step.entry, step.body, enumerate(step.sources)
    starts = {at: s.value for at, s in sources if isinstance(s, Constant) and s.is_start}
    if not starts:
        return body.jaxpr
    avals = tuple(body.jaxpr.in_avals)
    key = avals, *((at, tuple(value.tolist())) for at, value in starts.items())
    if (found := entry.bodies.get(key)) is None:
        closed = _traced(_knowing(entry.run.plain, starts), avals)
        count = len(body.outs)
        found = entry.bodies[key] = jax_core.with_outputs(closed, range(count), all_inputs=True)[0]
    return found


def _knowing(jitted: Any, starts: dict[int, np.ndarray]) -> Any:
    """Return a function of the same name in which some operands are constants."""
    function = getattr(jitted, "__wrapped__", jitted)

    @functools.wraps(function)
    def run(*operands: Any) -> Any:
        return function(*(starts.get(at, one) for at, one in enumerate(operands)))

    return jax.jit(run)


def _traced(run: Any, avals: tuple[Any, ...]) -> Any:
    """Return the jaxpr of a function for operands like these."""
    forms = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals
    ]
    with unrecorded(), x64():
        return jax.make_jaxpr(run)(*forms)


def _outs(closed: Any) -> tuple[Out, ...]:
    return tuple((aval, aval.shape, aval.dtype) for aval in closed.out_avals)
