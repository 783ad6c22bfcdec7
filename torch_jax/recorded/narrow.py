"""The Python numbers of a graph that end as float32.

A number is a float64, and an operator converts it to the dtype of its tensors. Where all that is
asked of it is a float32, the host converts it: TPUs have no float64, and GPUs few units for it.
"""

from __future__ import annotations

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
    wide = set(map(id, jaxpr.outvars))
    for eqn in jaxpr.eqns:
        is_conversion = eqn.primitive.name == "convert_element_type"
        if is_conversion and eqn.params["new_dtype"] == np.float32:
            continue
        inner = called_once(eqn)
        singles = narrow(inner.jaxpr) if inner is not None else ()
        wide.update(id(one) for at, one in enumerate(eqn.invars) if at not in singles)
    numbers = (at for at, one in enumerate(jaxpr.invars) if _is_number(one.aval))
    return frozenset(at for at in numbers if id(jaxpr.invars[at]) not in wide)


def _is_number(aval: Any) -> bool:
    return aval.shape == () and aval.dtype == np.float64
