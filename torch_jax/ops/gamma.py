"""The gamma function's family: digamma, polygamma, zeta, the incomplete gamma functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import lax

from torch_jax.ops.derivatives import slope
from torch_jax.ops.registry import op
from torch_jax.ops.unary import float_op, wide_float


@slope(lambda x: polygamma(1, x))
def digamma(x):
    """Return digamma: at zero, infinity of the other sign; NaN at negative integers."""
    return jnp.where(x == 0, jnp.copysign(np.inf, -x).astype(x.dtype), lax.digamma(x))


def zeta(x, q):
    """Return Hurwitz's zeta in double precision; JAX's is for positive ``q``.

    Terms below 1 are added one by one, so that those of opposite signs cancel.
    """
    dtype = x.dtype
    x, q = (y.astype(jnp.float64) for y in jnp.broadcast_arrays(x, q))
    whole = q == jnp.floor(q)
    pole, undefined = (q <= 0) & whole, (q < 0) & ~whole & (x != jnp.floor(x))

    def add(state):
        total, q = state
        return jnp.where(q < 1, total + jnp.power(q, -x), total), jnp.where(q < 1, q + 1, q)

    start = jnp.zeros_like(x), jnp.where(pole | (x <= 1), 1, q)
    total, q = lax.while_loop(lambda state: jnp.any(state[1] < 1), add, start)
    least, rest = total + jnp.power(q, -x), lax.zeta(x, q)
    huge = jnp.isnan(rest) & (least > 0) & (x > 1)  # where the other terms are nothing
    value = jnp.where(huge, least, total + rest)
    value = jnp.where(pole, np.inf, jnp.where(undefined, np.nan, value))
    return jnp.where(x == 1, np.inf, jnp.where(x < 1, np.nan, value)).astype(dtype)


def _trigamma(x):
    """Reflect arguments below a half."""
    low = x < 0.5
    value = zeta(jnp.asarray(2, x.dtype), jnp.where(low, 1 - x, x))
    value = jnp.where(x == np.inf, 0, value)
    return jnp.where(low, (math.pi / jnp.sin(math.pi * x)) ** 2 - value, value)


@op("polygamma")
@slope(lambda n, x: polygamma(n + 1, x))
def polygamma(n, self):
    """Return the ``n``-th derivative of digamma."""
    x = wide_float(self)
    if n < 2:
        return (digamma, _trigamma)[n](x)
    factor = (-1) ** (n + 1) * (math.factorial(n) if n <= 170 else math.inf)
    with np.errstate(over="ignore"):
        return x.dtype.type(factor) * zeta(jnp.asarray(n + 1, x.dtype), x)


def _incomplete_gamma(inside: Callable[..., jax.Array], at_zero: int) -> Callable[..., jax.Array]:
    """Compute ``inside``, ``at_zero`` for x = 0, in double precision: errors grow with ``a``."""

    def function(a, x):
        value = inside(*(y.astype(jnp.float64) for y in (a, x))).astype(a.dtype)
        limits: list[tuple[Any, Any]] = [
            ((a < 0) | (x < 0) | ((a == 0) & ~(x > 0)), np.nan),
            (a == 0, 1 - at_zero),
            (x == 0, at_zero),
            (jnp.isinf(a), jnp.where(jnp.isinf(x), np.nan, at_zero)),
            (jnp.isinf(x), 1 - at_zero),
        ]
        where, what = zip(*limits, strict=True)
        return jnp.select(where, [jnp.asarray(w, a.dtype) for w in what], value)

    return function


igamma = _incomplete_gamma(jsp.gammainc, 0)
igammac = _incomplete_gamma(jsp.gammaincc, 1)

float_op("digamma", digamma)
float_op("lgamma", lax.lgamma)
