"""The computation of an eager kernel's entry, as a jaxpr, and its check of indices by itself."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

from torch_jax._private import jax_core
from torch_jax._private.jaxprs import core
from torch_jax.compiler import options
from torch_jax.core import signals
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Node
from torch_jax.core.x64 import x64


class Body(NamedTuple):
    """The function of an entry, for operands of given forms.

    Attributes:
      run: takes the operands and gives a list of arrays.
      outs: the aval, shape and dtype of each result.
      check: whether the operands are in range, as a program of those that ``checked`` names;
        None where nothing can be wrong.
      checked: which operands the check looks at.
      maker: makes the results at once, if the operands that ``made_of`` names are numbers: the
        results depend on no others. None where one of these operands has dimensions.
      jaxpr: what ``run`` computes.
      check_jaxpr: what ``check`` computes.
      check_entry: the check as an entry, for a recording.
    """

    run: Callable[..., list[Any]]
    outs: tuple[tuple[Any, tuple[int, ...], Any], ...]
    check: Callable[..., Any] | None
    checked: tuple[int, ...]
    maker: Callable[..., list[Any]] | None
    made_of: tuple[int, ...]
    jaxpr: Any
    check_jaxpr: Any
    check_entry: Check | None


class Check:
    """A check of indices as an entry of its own, for a graph that computes it with the rest."""

    maker, slots, check, simple, key, on_host = False, (), (), False, (), None

    def __init__(self, jaxpr: Any, program: Callable[..., Any]):
        self.serial = f"check {next(_serials)}"
        self.bodies: dict[tuple[Any, ...], Body] = {}
        self.run = SimpleNamespace(plain=core.jaxpr_as_fun(jaxpr), call=program)


_serials = itertools.count()


def body_of(entry: Any, operands: list[Any]) -> Body:
    """Return the body of an entry for operands like these.

    Signals wait while JAX traces: several ``except:`` of JAX's would swallow what their handlers
    raise, and Ctrl-C would be lost.
    """
    avals = tuple(map(aval_of, operands))
    body = entry.bodies.get(avals)
    if body is None:
        body = entry.bodies[avals] = signals.undisturbed(_make, entry, avals)
    return body


def aval_of(operand: Any) -> Any:
    """Return JAX's description of an operand; Python numbers are weakly typed, and 64 bits wide."""
    if type(operand) is Node or isinstance(operand, jax.Array):
        return operand.aval
    if isinstance(operand, np.ndarray | np.generic):
        return jax.core.ShapedArray(operand.shape, operand.dtype)
    kind = float if isinstance(operand, float) else type(operand)
    return jax.core.ShapedArray((), np.dtype(kind), weak_type=kind is not bool)


def beginning_at(entry: Any, body: Body, starts: dict[int, np.ndarray]) -> Any:
    """Return the jaxpr of an entry some of whose operands say where views begin, and are known.

    It takes these operands, too, and does not look at them. XLA fuses a slice with what follows,
    and copies one that begins at an operand.
    """
    if not starts:
        return body.jaxpr
    avals = tuple(body.jaxpr.in_avals)
    key = avals, *((at, tuple(value.tolist())) for at, value in starts.items())
    found = entry.bodies.get(key)
    if found is None:
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
    recorder, ACTIVE.recorder = ACTIVE.recorder, None
    try:
        with x64():
            forms = [
                jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
                for aval in avals
            ]
            return jax.make_jaxpr(run)(*forms)
    finally:
        ACTIVE.recorder = recorder


def _make(entry: Any, avals: tuple[Any, ...]) -> Body:
    closed = _traced(entry.run.plain, avals)
    check: Any = None
    kept: Any = None
    checked: tuple[int, ...] = ()
    count = len(closed.out_avals) - bool(entry.check)
    if entry.check:
        kept, check, checked = _part(closed, [count])
        closed = jax_core.with_outputs(closed, range(count), all_inputs=True)[0]
    maker, made_of = (None, ()) if entry.slots else _maker(closed, count, avals)
    outs = tuple((aval, aval.shape, aval.dtype) for aval in closed.out_avals)
    run = core.jaxpr_as_fun(closed)
    as_entry = None if check is None else Check(kept, check)
    return Body(run, outs, check, checked, maker, made_of, closed, kept, as_entry)


def _maker(closed: Any, count: int, avals: tuple[Any, ...]) -> tuple[Any, tuple[int, ...]]:
    """Return a function that makes the first ``count`` results at once, or None, and its operands.

    What counts is computed with the rest: bounds of the counts may prove a check of indices.
    """
    made, maker, made_of = _part(closed, range(count))
    if any(avals[at].shape for at in made_of) or "iota" in str(made.jaxpr):
        return None, ()
    return maker, made_of


def _part(closed: Any, outputs: Iterable[int]) -> tuple[Any, Any, tuple[int, ...]]:
    """Return the jaxpr of some outputs alone, a program of it, and the inputs that it takes."""
    part, used = jax_core.with_outputs(closed, outputs)
    program = jax.jit(core.jaxpr_as_fun(part), compiler_options=options.operator())
    return part, program, tuple(at for at, is_used in enumerate(used) if is_used)
