"""Arithmetic of sizes that may change, as in ``int(x.shape[1] * 1.5)``.

Symbols of ``jax.export`` are integers only. A size times a float is kept as a :class:`Scaled`:
rounded it is a size again, anywhere else it is an array.

>>> evaluate(math.trunc, (evaluate(operator.mul, (Scaled(5, Fraction(1)), 1.5)),))
7
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import export as jax_export

_FINEST = 2**10  # multiples of such fractions are exact in PyTorch's float64 too


class Scaled:
    """A size times a number."""

    def __init__(self, size: Any, by: Fraction):
        self.size, self.by = size, by

    def array(self) -> jax.Array:
        """Return the product, an array of no dimensions."""
        return jnp.asarray(self.size).astype(jnp.float64) * float(self.by)


def evaluate(function: Callable[..., Any], args: tuple) -> Any:
    """Evaluate a function of Python's operators, ``math`` or ``torch.sym_…`` of numbers."""
    known = _FUNCTIONS.get(function)
    return known(*args) if known else function(*map(as_array, args))


def is_number(value: Any) -> bool:
    """Return whether a value is a size, a number, or a scaled size."""
    if isinstance(value, jax.Array):
        return value.ndim == 0
    return isinstance(value, int | float | Scaled) or jax_export.is_symbolic_dim(value)


def as_array(value: Any) -> Any:
    """Return an array for a scaled size; other values unchanged."""
    return value.array() if isinstance(value, Scaled) else value


def _multiply(a: Any, b: Any) -> Any:
    if isinstance(b, Scaled):
        a, b = b, a
    return _scaled(operator.mul, a, b)


def _divide(a: Any, b: Any) -> Any:
    a = Scaled(a, Fraction(1)) if jax_export.is_symbolic_dim(a) else a
    return _scaled(operator.truediv, a, b)


def _scaled(function: Callable[..., Any], a: Any, b: Any) -> Any:
    """Return a product or quotient, as a scaled size if it is one exactly."""
    if isinstance(a, Scaled) and isinstance(b, int | float) and b and math.isfinite(b):
        by = function(a.by, Fraction(b))
        if _FINEST % by.denominator == 0 and 0 < by < _FINEST:
            return Scaled(a.size, by)
    return function(as_array(a), as_array(b))


def _rounding(function: Callable[..., Any], up: bool = False) -> Callable[[Any], Any]:
    """Return ``math.floor`` or one like it, for scaled sizes, which are not negative."""

    def rounded(value: Any) -> Any:
        if isinstance(value, jax.Array):
            raise NotImplementedError(
                "a size that is rounded from an inexact float: use integers, as in size * 7 // 10"
            )
        if jax_export.is_symbolic_dim(value):
            return value
        if not isinstance(value, Scaled):
            return function(value)
        numerator, denominator = value.by.as_integer_ratio()
        return (value.size * numerator + up * (denominator - 1)) // denominator

    return rounded


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.sym_max: jax.core.max_dim,
    torch.sym_min: jax.core.min_dim,
    torch.sym_float: lambda size: Scaled(size, Fraction(1)),
    torch.sym_int: _rounding(math.trunc),
    torch.sym_sqrt: lambda value: jnp.sqrt(jnp.asarray(as_array(value))),
    math.trunc: _rounding(math.trunc),
    math.floor: _rounding(math.floor),
    math.ceil: _rounding(math.ceil, up=True),
    operator.mul: _multiply,
    operator.truediv: _divide,
}
