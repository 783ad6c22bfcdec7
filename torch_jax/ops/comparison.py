"""Comparisons and logic: the result is bool."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_jax.ops.bitwise import of_promoted
from torch_jax.ops.on_host import on_host
from torch_jax.ops.promotion import category
from torch_jax.ops.registry import op

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    of_promoted(getattr(operator, _name), f"{_name}.Tensor", f"{_name}.Scalar")

for _name in ("logical_and", "logical_or", "logical_xor"):
    of_promoted(getattr(jnp, _name), _name)
op("logical_not")(jnp.logical_not)


def _of_fractions(name: str, function: Callable[..., Any]) -> None:
    def lowering(self):
        return function(self) if category(self.dtype) >= 2 else jnp.zeros(self.shape, bool)

    lowering.__doc__ = f"``{name}``; False for integers."
    op(name)(lowering)


_of_fractions("isnan", jnp.isnan)
_of_fractions("isinf", jnp.isinf)
_of_fractions("isposinf", lambda x: x == np.inf)
_of_fractions("isneginf", lambda x: x == -np.inf)


@op("equal", concrete=True, meta=False, instead="use (a == b).all(), which is a tensor")
def equal(self, other):
    """Return a Python bool; tensors of different shapes are not equal."""
    return self.shape == other.shape and bool(on_host((self == other).all()))


def _is_true(self, assert_msg="Expected Tensor with single nonzero value, but got zero"):
    return (self != 0).all(), assert_msg or "Assertion is failed", RuntimeError


@op("_assert_async", "_assert_async.msg", static=("assert_msg",), meta=False, check=_is_true)
def _assert_async(self, assert_msg=""):
    """Raise where a number is zero or false; programs raise after they have run."""
    if self.size != 1:
        raise RuntimeError(
            f"Boolean value of Tensor with {'more than one value' if self.size else 'no values'} "
            "is ambiguous"
        )
    return ()
