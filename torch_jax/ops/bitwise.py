"""Bitwise operators of integers and bools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from torch_jax.ops.promotion import promote
from torch_jax.ops.registry import op


def of_promoted(function: Callable[..., Any], *names: str, meta: bool | str = True) -> None:
    """Enter a function of two operands of one dtype."""

    def lowering(self, other):
        return function(*promote(self, other))

    lowering.__doc__ = f"``{function.__name__}`` of promoted operands."
    op(*names, meta=meta)(lowering)


def _left_shift(a, b):
    """Give zero where the shift is negative or as wide as the integer."""
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    return jnp.where(inside, jnp.left_shift(a, jnp.where(inside, b, 0)), 0)


def _right_shift(a, b):
    """Keep the sign alone where the shift is negative or as wide as the integer."""
    bits = a.dtype.itemsize * 8
    most = bits - (1 if jnp.issubdtype(a.dtype, jnp.signedinteger) else 0)
    inside = (b >= 0) & (b < most)
    shifted = jnp.right_shift(a, jnp.where(inside, b, 0))
    return jnp.where(inside, shifted, jnp.where(a < 0, -1, 0).astype(a.dtype))


for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    of_promoted(getattr(jnp, _name), f"{_name}.Tensor", f"{_name}.Scalar", f"{_name}.Scalar_Tensor")
for _side, _shift in (("left", _left_shift), ("right", _right_shift)):
    _name = f"bitwise_{_side}_shift"
    _dunder = f"__{_side[0]}shift__"
    for _kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        of_promoted(_shift, f"{_name}.{_kind}")
    # meta functions of their own, in Python, ask for integers on the left
    of_promoted(_shift, f"{_dunder}.Tensor", meta=f"{_name}.Tensor")
    of_promoted(_shift, f"{_dunder}.Scalar", meta=f"{_name}.Tensor_Scalar")


op("bitwise_not")(lambda self: jnp.bitwise_not(self))
