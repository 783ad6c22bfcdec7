"""Values that XLA would round in two ways, and that a program compares with each other.

XLA computes a value in each loop that reads it, and rounds a product and a sum once in one
loop and twice in another. The greatest of some elements may then equal none of them, so that
gradients are lost, and filters leave out what they are to keep. So what both sides of a comparison
are computed of is put into memory.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from torch_jax._private.jaxprs import called_once, core

_COMPARISONS = frozenset("eq ne lt le gt ge".split())

# What a variable is computed of, with itself: bits of variables, or of a called jaxpr's operands.
_Behind = dict[Any, int]


def compared_in_memory(jaxpr: Any) -> list[Any]:
    """Return the last variables that both sides of a comparison of floats are computed of.

    It looks at the comparisons inside of operators, too, and at variables outside of them alone.

    >>> def run(x):
    ...     y = x * 2 + 1
    ...     return abs(y) == abs(y).max()
    >>> [str(v.aval) for v in compared_in_memory(jax.make_jaxpr(run)(jax.numpy.ones(5)).jaxpr)]
    ['float32[5]']
    """
    behind: _Behind = {}
    made: list[Any] = []
    found = []
    for eqn in jaxpr.eqns:
        for one, other in _sides(eqn, behind):
            both = one & other
            while both:
                var = made[both.bit_length() - 1]
                found.append(var)
                both &= ~behind[var]
        together = _together(eqn.invars, behind)
        for var in eqn.outvars:
            behind[var] = together
            if math.prod(getattr(var.aval, "shape", ())) > 0:
                behind[var] |= 1 << len(made)
                made.append(var)
    return found


def _sides(eqn: Any, behind: _Behind) -> Iterator[tuple[int, int]]:
    """Yield what is behind both sides of the comparisons that an equation makes."""
    if (inner := called_once(eqn)) is not None:
        operands = [_together((atom,), behind) for atom in eqn.invars]
        within: _Behind = dict(zip(inner.jaxpr.invars, operands, strict=True))
        for one in inner.jaxpr.eqns:
            yield from _sides(one, within)
            within.update(dict.fromkeys(one.outvars, _together(one.invars, within)))
    elif eqn.primitive.name in _COMPARISONS:
        one, other = eqn.invars
        if one is not other and jax.dtypes.issubdtype(one.aval.dtype, np.inexact):
            yield _together((one,), behind), _together((other,), behind)


def _together(atoms: Any, behind: _Behind) -> int:
    masks = (0 if isinstance(atom, core.Literal) else behind.get(atom, 0) for atom in atoms)
    return functools.reduce(operator.or_, masks, 0)
