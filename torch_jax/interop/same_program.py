"""Comparison of two traces: a key of a jaxpr, without the names of variables."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from torch_jax._private.jaxprs import core
from torch_jax.budgets import ELEMENTS_OF_A_SMALL_CONSTANT
from torch_jax.interop.function_state import Same


def same_program(closed: Any) -> tuple:
    """Return a key that is equal for jaxprs of the same equations over the same constants.

    >>> one, other = (jax.make_jaxpr(lambda x: x * 2)(1.0) for _ in range(2))
    >>> same_program(one) == same_program(other)
    True
    >>> same_program(one) == same_program(jax.make_jaxpr(lambda x: x * 3)(1.0))
    False
    """
    return _of_jaxpr(closed.jaxpr), tuple(map(_of_constant, closed.consts))


def _of_jaxpr(jaxpr: Any) -> tuple:
    numbers: dict[Any, int] = {}

    def variable(var: Any) -> Any:
        if isinstance(var, core.Literal):
            return var.aval, _of_constant(var.val)
        return numbers.setdefault(var, len(numbers))

    inputs = [(variable(v), v.aval) for v in (*jaxpr.constvars, *jaxpr.invars)]
    equations = []
    for eqn in jaxpr.eqns:
        params = tuple((name, _of_param(value)) for name, value in sorted(eqn.params.items()))
        read = tuple(map(variable, eqn.invars))
        made = tuple((variable(v), v.aval) for v in eqn.outvars)
        equations.append((eqn.primitive, params, read, made, Same(type(eqn.ctx))))
    return tuple(inputs), tuple(equations), tuple(map(variable, jaxpr.outvars))


def _of_constant(value: Any) -> Any:
    """Return a constant as a key: by its bytes where it is small, else by identity."""
    is_large = getattr(value, "size", 1) > ELEMENTS_OF_A_SMALL_CONSTANT
    is_key = isinstance(value, jax.Array) and jax.dtypes.issubdtype(
        value.dtype, jax.dtypes.extended
    )
    if isinstance(value, jax.core.Tracer) or is_large or is_key:
        return Same(value)
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes(), type(value) in (int, float, complex)


def _of_param(value: Any) -> Any:
    if isinstance(value, core.ClosedJaxpr):
        return same_program(value)
    if isinstance(value, core.Jaxpr):
        return _of_jaxpr(value)
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_of_param, value))
    if isinstance(value, dict):
        return tuple((k, _of_param(v)) for k, v in value.items())
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _of_constant(value)
    if callable(value):
        return Same(value)
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return type(value), value
