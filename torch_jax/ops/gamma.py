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

EPSILON = 2.0**-53

# The even Bernoulli numbers from the second on.
BERNOULLI = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798),
    *(-174611 / 330, 854513 / 138, -236364091 / 2730),
)


@slope(lambda x: polygamma(1, x))
def digamma(x):
    """Return digamma: at zero, infinity of the other sign; NaN at negative integers."""
    return jnp.where(x == 0, jnp.copysign(np.inf, -x).astype(x.dtype), lax.digamma(x))


def zeta(x, q):
    """Return Hurwitz's zeta by Euler and Maclaurin's formula, also for negative ``q``.

    Terms are added one by one while ``q + k`` is at most 9, and ten at least, in double precision.
    """
    dtype = x.dtype
    x, q = (y.astype(jnp.float64) for y in jnp.broadcast_arrays(x, q))
    pole = (q <= 0) & (q == jnp.floor(q))
    total, last, base, done = _leading_terms(x, jnp.where(pole | (x <= 1), 1, q))
    total = jnp.where(done, total, _remainder(x, total, last, base))
    undefined = (q < 0) & (x != jnp.floor(x))
    value = jnp.where(pole, np.inf, jnp.where(undefined, np.nan, total))
    return jnp.where(x == 1, np.inf, jnp.where(x < 1, np.nan, value)).astype(dtype)


def _leading_terms(x, q):
    """Return the sum of ``(q + k) ** -x``, the last term, its ``q + k``, and if the rest is 0."""

    def more(state):
        k, base, _, _, done = state
        return ((k < 9) | (base <= 9)) & ~done

    def add(state):
        k, base, total, last, done = state
        on = more(state)
        base = jnp.where(on, base + 1, base)
        last = jnp.where(on, jnp.power(base, -x), last)
        total = jnp.where(on, total + last, total)
        return k + 1, base, total, last, done | (on & (jnp.abs(last) < EPSILON * total))

    start = (0, q, jnp.power(q, -x), jnp.zeros_like(q), jnp.zeros(q.shape, bool))
    _, base, total, last, done = lax.while_loop(lambda s: jnp.any(more(s)), add, start)
    return total, last, base, done


def _remainder(x, total, last, base):
    """Return ``total`` and the sum of the terms after ``last``, which is ``base ** -x``."""
    total = total + last * base / (x - 1) - last / 2
    done = jnp.zeros(x.shape, bool)
    power = last / base * x
    for k, bernoulli in enumerate(BERNOULLI):
        term = power * (bernoulli / math.factorial(2 * k + 2))
        total = jnp.where(done, total, total + term)
        done |= jnp.abs(term) < EPSILON * jnp.abs(total)
        power = power / base * (x + 2 * k + 1) / base * (x + 2 * k + 2)
    return total


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


@op("mvlgamma")
def mvlgamma(self, p):
    """Return a sum of ``lgamma``."""
    x = wide_float(self)
    terms = (lax.lgamma(x - j / 2) for j in range(p))
    return sum(terms, x.dtype.type(p * (p - 1) / 4 * math.log(math.pi)))


def _incomplete_gamma(inside: Callable[..., jax.Array], at_zero: int) -> Callable[..., jax.Array]:
    """Wrap ``inside``, for positive finite arguments, in double precision: errors grow with ``a``.

    ``at_zero`` is the limit for ``x`` = 0.
    """

    def function(a, x):
        edge = (a <= 0) | (x <= 0) | jnp.isinf(a) | jnp.isinf(x)
        value = inside(*(jnp.where(edge, 1, y).astype(jnp.float64) for y in (a, x)))
        limits: list[tuple[Any, Any]] = [
            ((a < 0) | (x < 0) | ((a == 0) & ~(x > 0)), np.nan),
            (a == 0, 1 - at_zero),
            (x == 0, at_zero),
            (jnp.isinf(a) & jnp.isinf(x), np.nan),
            (jnp.isinf(a), at_zero),
            (jnp.isinf(x), 1 - at_zero),
        ]
        where, what = zip(*limits, strict=True)
        return jnp.select(where, [jnp.asarray(w, a.dtype) for w in what], value.astype(a.dtype))

    return function


igamma = _incomplete_gamma(jsp.gammainc, 0)
igammac = _incomplete_gamma(jsp.gammaincc, 1)

float_op("digamma", digamma)
float_op("lgamma", lax.lgamma)
