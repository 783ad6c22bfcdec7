"""Phases of a program, one done before the next begins, as Python ran them.

A loop that accumulates gradients runs a backward pass for each part of a batch. To XLA nothing says
that the second forward pass is to wait for the first backward pass, and it computes them all first,
so that what each keeps for its backward pass is there at once. So a trace marks where a backward
pass has ended, and a barrier is put there which all values pass that are used later on.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax._private.jaxprs import core
from torch_jax.compiler import jaxpr

_mark = core.Primitive("mark")
_mark.def_abstract_eval(lambda: jaxpr.Aval((), jnp.dtype(bool)))


def mark(trace: Any) -> None:
    """A phase ends here."""
    with core.set_current_trace(trace):
        _mark.bind()


def in_phases(closed: Any) -> Any:
    """The closed jaxpr without its marks, and with a barrier at each but the last.

    What follows the last backward pass, such as an optimizer's step, may well be mixed with it.
    """
    inner = closed.jaxpr
    marks = [eqn for eqn in inner.eqns if eqn.primitive is _mark]
    if not marks:
        return closed
    eqns = jaxpr.needed(inner.eqns, inner.outvars, marks[:-1])
    last = {v: at for at, eqn in enumerate(eqns) for v in jaxpr.used([eqn], [])}
    last |= {v: len(eqns) for v in jaxpr.used([], inner.outvars) if v not in set(inner.invars)}
    fresh, known = core.gensym(), [*inner.constvars, *inner.invars]
    behind: dict[Any, Any] = {}
    found = []
    for at, eqn in enumerate(eqns):
        if eqn.primitive is _mark:
            live = [v for v in known if last.get(v, at) > at]
            after = [fresh(v.aval) for v in live]
            found.append(_barrier(eqn).replace(invars=_renamed(live, behind), outvars=after))
            behind |= dict(zip(live, after, strict=True))
        else:
            found.append(eqn.replace(invars=_renamed(eqn.invars, behind)))
            known += eqn.outvars
    return jaxpr.with_equations(closed, inner.invars, found, _renamed(inner.outvars, behind))


def _barrier(mark: Any) -> Any:
    """An equation that is a barrier, in the place of a mark."""
    made = jax.make_jaxpr(lambda: lax.optimization_barrier((jnp.zeros(()),)))().jaxpr.eqns[-1]
    return made.replace(source_info=mark.source_info)


def _renamed(variables: Any, names: dict[Any, Any]) -> list[Any]:
    return [v if isinstance(v, core.Literal) else names.get(v, v) for v in variables]
