"""Jaxprs taken apart: inputs that are found while a function is traced, and a trace cut in two.

While a function is traced, each storage that is met for the first time becomes an input: an
equation ``x = input[index]`` without operands. When the trace is over these equations are taken
out of the jaxpr and their variables made its arguments, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from torch_jax._private.jaxprs import core
from torch_jax.core.x64 import x64

Aval = jax.core.ShapedArray

_input = core.Primitive("input")
_input.def_abstract_eval(lambda *, index, aval: aval)


def new_input(trace: Any, index: int, aval: Aval) -> jax.Array:
    """A tracer of the outermost trace that stands for input ``index``."""
    with core.set_current_trace(trace), x64():
        return _input.bind(index=index, aval=aval)


def current_trace() -> Any:
    """JAX's innermost trace on this thread."""
    with core.take_current_trace() as trace:
        return trace


def with_inputs(closed: Any, avals: Sequence[Aval]) -> Any:
    """The closed jaxpr with its ``input`` equations turned into arguments, in order of index."""
    inner = closed.jaxpr
    found = {e.params["index"]: e.outvars[0] for e in inner.eqns if e.primitive is _input}
    unused = core.gensym()
    invars = [found.get(i) or unused(aval) for i, aval in enumerate(avals)]
    eqns = [e for e in inner.eqns if e.primitive is not _input]
    return with_equations(closed, invars, eqns, inner.outvars)


def position(closed: Any, index: int) -> int:
    """How many equations stand before the one of input ``index``, other inputs not counted.

    This is where that equation would stand in what :func:`with_inputs` gives.
    """
    count = 0
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive is not _input:
            count += 1
        elif eqn.params["index"] == index:
            break
    return count


def _without_names(jaxpr: Any) -> Any:
    """Debug information that claims no names for arguments and results."""
    info = jaxpr.debug_info
    replace = getattr(info, "_replace", None)
    return replace(arg_names=None, result_paths=None) if replace else info


class Cut:
    """A jaxpr of forward and backward pass, cut in two.

    Attributes:
      forward: gives the forward outputs, then what the backward pass needs that is no input.
      backward: takes the inputs that it needs, the former, and the gradients.
      kept: the indices of the inputs that it needs.
    """

    def __init__(
        self,
        closed: Any,
        at: int,
        outputs: int,
        first: int,
        count: int,
        again: bool = False,
        saved: int = 0,
    ):
        """Cut at an equation; ``outputs`` are the forward pass's, ``count`` inputs from ``first``
        on are gradients. With ``again`` the backward pass computes the forward pass once more, all
        but the last ``saved`` outputs, which are no results.
        """
        jaxpr = closed.jaxpr
        given = jaxpr.invars[first : first + count]
        ours = [v for i, v in enumerate(jaxpr.invars) if not first <= i < first + count]
        front, back = jaxpr.eqns[:at], jaxpr.eqns[0 if again else at :]
        wanted = jaxpr.outvars[outputs : len(jaxpr.outvars) - saved]
        computed = {v for eqn in front for v in eqn.outvars}
        if again:
            kept = set(jaxpr.outvars[len(jaxpr.outvars) - saved :])
            done = {id(eqn) for eqn in front if kept.intersection(eqn.outvars)}
            computed = {v for eqn in front if id(eqn) in done for v in eqn.outvars}
            back = needed([eqn for eqn in back if id(eqn) not in done], wanted)
        residuals = dict.fromkeys(v for v in used(back, wanted) if v in computed)
        inputs = {v: i for i, v in enumerate(ours)}
        taken = dict.fromkeys(v for v in used(back, wanted) if v in inputs)
        self.kept = [inputs[v] for v in taken]
        self.residuals = len(residuals)
        self.forward = with_equations(closed, ours, front, [*jaxpr.outvars[:outputs], *residuals])
        self.backward = with_equations(closed, [*taken, *residuals, *given], back, wanted)


def needed(eqns: Sequence[Any], outvars: list[Any], others: Sequence[Any] = ()) -> list[Any]:
    """The equations that results need, those with effects, and ``others``."""
    kept, found = set(map(id, others)), []
    met = set(used([], outvars))
    for eqn in reversed(eqns):
        if eqn.effects or id(eqn) in kept or met.intersection(eqn.outvars):
            found.append(eqn)
            met.update(used([eqn], []))
    return found[::-1]


def used(eqns: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    """The variables that equations take, and those among results."""
    variables = [v for eqn in eqns for v in eqn.invars] + list(outvars)
    return [v for v in variables if not isinstance(v, core.Literal)]


def with_equations(
    closed: Any, invars: Sequence[Any], eqns: Sequence[Any], outvars: Sequence[Any]
) -> Any:
    """The closed jaxpr with other arguments, equations and results."""
    jaxpr, info = closed.jaxpr, _without_names(closed.jaxpr)
    parts = list(invars), list(outvars), list(eqns), jaxpr.effects, info
    return core.ClosedJaxpr(core.Jaxpr(jaxpr.constvars, *parts), closed.consts)
