"""The Python numbers of a graph that end as float32.

A number is a float64, and an operator converts it to the dtype of its tensors. Where all that is
asked of it is a float32, the host converts it: TPUs have no float64, and GPUs few units for it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from torch_jax._private.jaxprs import called_once


def narrow(jaxpr: Any) -> frozenset[int]:
    """Return which inputs of a jaxpr are numbers of float64 of which only a float32 is used.

    >>> import jax, jax.numpy as jnp
    >>> with jax.enable_x64():
    ...     number = jax.ShapeDtypeStruct((), "float64", weak_type=True)
    ...     array = jnp.ones(2, "float32")
    ...     made = jax.make_jaxpr(lambda x, a, b: (x * a, b + 1))(array, number, number)
    >>> sorted(narrow(made.jaxpr))
    [1]
    """
    return _narrow(jaxpr, {})


def _narrow(jaxpr: Any, known: dict[int, frozenset[int]]) -> frozenset[int]:
    found = known.get(id(jaxpr))
    if found is None:
        uses = defaultdict(list)
        for eqn in jaxpr.eqns:
            for at, variable in enumerate(eqn.invars):
                uses[id(variable)].append((eqn, at))
        kept = {id(variable) for variable in jaxpr.outvars}
        found = known[id(jaxpr)] = frozenset(
            at
            for at, variable in enumerate(jaxpr.invars)
            if _is_number(variable.aval)
            and id(variable) not in kept
            and all(_narrows(eqn, place, known) for eqn, place in uses[id(variable)])
        )
    return found


def _is_number(aval: Any) -> bool:
    return aval.shape == () and aval.dtype == np.float64


def _narrows(eqn: Any, at: int, known: dict[int, frozenset[int]]) -> bool:
    """Return whether an equation takes of its operand a float32 only."""
    if eqn.primitive.name == "convert_element_type":
        return eqn.params["new_dtype"] == np.float32
    inner = called_once(eqn)
    return inner is not None and at in _narrow(inner.jaxpr, known)
