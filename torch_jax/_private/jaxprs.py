"""``jax.extend.core``, without ``jax.extend``.

To import that imports Pallas, which takes a tenth of a short program's start.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.extend import core as core

_NAMES = """
    ClosedJaxpr Jaxpr Literal Primitive gensym jaxpr_as_fun jaxprs_in_params set_current_trace
    take_current_trace
"""


def _core() -> Any:
    private = importlib.import_module("jax._src.core")
    if all(hasattr(private, name) for name in _NAMES.split()):
        return private
    return importlib.import_module("jax.extend.core")  # another release keeps them elsewhere


if not TYPE_CHECKING:
    core = _core()


def with_barriers(closed: Any, variables: Iterable[Any]) -> Any:
    """Return a closed jaxpr in which later equations read these variables behind a barrier."""
    behind = {var: type(var)(var.aval) for var in variables}

    def read(atoms: Iterable[Any]) -> list[Any]:
        return [
            atom if isinstance(atom, core.Literal) else behind.get(atom, atom) for atom in atoms
        ]

    equations = []
    for eqn in closed.jaxpr.eqns:
        equations.append(eqn.replace(invars=read(eqn.invars)))
        for var in filter(behind.__contains__, eqn.outvars):
            (barrier,) = _barrier(var.aval).eqns
            equations.append(barrier.replace(invars=[var], outvars=[behind[var]]))
    outputs = read(closed.jaxpr.outvars)
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=equations, outvars=outputs))


def _barrier(aval: Any) -> Any:
    jax = importlib.import_module("jax")
    form = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    return jax.make_jaxpr(jax.lax.optimization_barrier)(form)


def mentions(jaxpr: Any, part_of_name: str) -> bool:
    """Return whether an equation of a jaxpr, at any depth, is of a primitive of this name."""
    return any(
        part_of_name in eqn.primitive.name
        or any(mentions(inner, part_of_name) for inner in core.jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )


_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
}


def called_once(equation: Any) -> Any:
    """Return the closed jaxpr that an equation calls once, with its own operands; else None."""
    return equation.params.get(_CALLS.get(equation.primitive.name, ""))
