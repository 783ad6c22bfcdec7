"""Comparison of two traces: a key of a jaxpr, without the names of variables."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from torch_jax._private.jaxprs import core
from torch_jax.budgets import ELEMENTS_OF_A_SMALL_CONSTANT
from torch_jax.dispatch.jax_programs import mentions
from torch_jax.interop.function_state import PARTS, Same, state_of


def same_program(closed: Any) -> tuple:
    """Return a key that is equal for jaxprs of the same equations over the same constants.

    >>> one, other = (jax.make_jaxpr(lambda x: x * 2)(1.0) for _ in range(2))
    >>> same_program(one) == same_program(other)
    True
    >>> same_program(one) == same_program(jax.make_jaxpr(lambda x: x * 3)(1.0))
    False
    """
    calls_back = mentions(closed.jaxpr, "callback")  # it may write to objects of its own
    return (not calls_back and state_of(None, (closed,))) or (Same(closed),)


def _constant(value: Any) -> Any:
    """Return a constant; a small array of JAX as one of NumPy, which counts by its bytes."""
    is_large = getattr(value, "size", 1) > ELEMENTS_OF_A_SMALL_CONSTANT
    if is_large or not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return value
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)
    return value if is_key else np.asarray(value)


PARTS |= {
    core.ClosedJaxpr: lambda closed: (closed.jaxpr, *map(_constant, closed.consts)),
    core.Jaxpr: lambda jaxpr: (jaxpr.constvars, jaxpr.invars, jaxpr.eqns, jaxpr.outvars),
    core.JaxprEqn: lambda eqn: (
        *(eqn.primitive, eqn.params, eqn.invars, eqn.outvars),
        type(eqn.ctx),  # of ours, where 64-bit types are on
    ),
}
