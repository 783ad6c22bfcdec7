"""Orthogonal polynomials of an order that varies by element, by their recurrences.

The order is cut to a whole number. A negative, infinite or undefined one gives 0, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops.promotion import promote
from torch_jax.ops.registry import op

Step = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
Of = Callable[[jax.Array, jax.Array], jax.Array]  # of x and n


def _whole(n):
    """Return int64; -1 for numbers that do not fit."""
    fits = jnp.abs(n) < 2.0**63
    return jnp.where(fits, jnp.where(fits, n, 0).astype(jnp.int64), -1)


def recurrence(x: jax.Array, n: jax.Array, first: jax.Array, step: Step) -> jax.Array:
    """Return ``P_n``: ``P_0`` is 1, ``P_1`` is ``first`` and ``P_k+1 = step(k, x, P_k, P_k-1)``.

    It runs to the largest ``n``, or to where the rest has become NaN.
    """

    def going(k, current):
        return (k < n) & ~jnp.isnan(current)

    def advance(state):
        k, current, previous = state
        then = step(k.astype(x.dtype), x, current, previous)
        on = going(k, current)
        return k + 1, jnp.where(on, then, current), jnp.where(on, current, previous)

    start = jnp.asarray(1, jnp.int64), first, jnp.ones_like(first)
    _, last, _ = lax.while_loop(lambda s: jnp.any(going(s[0], s[1])), advance, start)
    return jnp.where(n == 0, 1, last)


def _polynomial(name: str, function: Of) -> None:
    """Enter ``function`` of float ``x`` and int64 ``n`` of one shape."""

    def lowering(x, n):
        x, n = jnp.broadcast_arrays(*promote(x, n, to_float=True))
        x = lax.stop_gradient(x)  # PyTorch has no derivatives of them
        n = _whole(n)
        return jnp.where(n < 0, 0, function(x, n))

    lowering.__doc__ = f"``{name}``; integers become floats."
    names = (f"special_{name}", f"special_{name}.x_scalar", f"special_{name}.n_scalar")
    op(*names)(lowering)


# --- Chebyshev ------------------------------------------------------------------------------------


class Chebyshev(NamedTuple):
    """A kind of Chebyshev's polynomials, of four."""

    first: Callable[[jax.Array], jax.Array]  # ``P_1`` of ``x``
    wave: Of  # ``P_n`` within -1..1, of the angle ``arccos(x)``
    above: tuple[int, int]  # the least ``n`` for which the wave is used, and that for shifted ``x``
    # ``P_n(1)`` and ``|P_n(-1)|``, whose sign is that of ``(-1) ** n``
    ends: tuple[Callable[[jax.Array], Any], Callable[[jax.Array], Any]]


def _sign(n):
    return 1 - 2 * (n % 2)


def _t_wave(angle, n):
    return jnp.cos(n.astype(angle.dtype) * angle)


def _u_wave(angle, n):
    return jnp.sin((n + 1).astype(angle.dtype) * angle) / jnp.sin(angle)


def _v_wave(angle, n):
    """Return the wave; so near -1 that the angle has no digits left, the value there."""
    wave = jnp.cos((n.astype(angle.dtype) + 0.5) * angle) / jnp.cos(angle / 2)
    return jnp.where(jnp.sin(angle / 2) == 1, (_sign(n) * _odd(n)).astype(angle.dtype), wave)


def _w_wave(angle, n):
    return jnp.sin((n.astype(angle.dtype) + 0.5) * angle) / jnp.sin(angle / 2)


def _odd(n):
    return 2 * n + 1


KINDS = {
    "t": Chebyshev(lambda x: x, _t_wave, (6, 6), (lambda n: 1, lambda n: 1)),
    "u": Chebyshev(lambda x: 2 * x, _u_wave, (8, 6), (lambda n: n + 1, lambda n: n + 1)),
    "v": Chebyshev(lambda x: 2 * x - 1, _v_wave, (8, 6), (lambda n: 1, _odd)),
    "w": Chebyshev(lambda x: 2 * x + 1, _w_wave, (8, 4), (_odd, lambda n: 1)),
}


def _chebyshev(kind: Chebyshev, shifted: bool) -> Of:
    """Return a wave within -1..1 for all but small ``n``; else the recurrence."""

    def function(x, n):
        x = 2 * x - 1 if shifted else x
        at_one, at_minus_one = (end(n) for end in kind.ends)
        end = jnp.where(x > 0, at_one, _sign(n) * at_minus_one).astype(x.dtype)
        is_end = jnp.abs(x) == 1
        is_wave = (n > kind.above[shifted]) & (jnp.abs(x) < 1)
        steps = jnp.where(is_end | is_wave, 0, n)
        value = recurrence(x, steps, kind.first(x), lambda k, x, now, last: 2 * x * now - last)
        return jnp.where(is_end, end, jnp.where(is_wave, kind.wave(jnp.arccos(x), n), value))

    return function


for _letter, _kind in KINDS.items():
    _polynomial(f"chebyshev_polynomial_{_letter}", _chebyshev(_kind, shifted=False))
    _polynomial(f"shifted_chebyshev_polynomial_{_letter}", _chebyshev(_kind, shifted=True))


# --- Hermite, Laguerre, Legendre ------------------------------------------------------------------


def _hermite(factor: int) -> Of:
    """Return the physicist's (``factor`` 2) or probabilist's (1): NaN where ``n`` is too large."""

    def step(k, x, current, previous):
        return factor * (x * current - k * previous)

    def function(x, n):
        too_large = n > (128 if x.dtype == np.float32 else 512)
        value = recurrence(x, jnp.where(too_large, 0, n), factor * x, step)
        return jnp.where(too_large, np.nan, value)

    return function


def _laguerre(x, n):
    def step(k, x, current, previous):
        return ((2 * k + (1 - x)) * current - k * previous) / (k + 1)

    return recurrence(x, jnp.where(x == 0, 0, n), 1 - x, step)


def _legendre(x, n):
    def step(k, x, current, previous):
        return ((2 * k + 1) * x * current - k * previous) / (k + 1)

    is_end = jnp.abs(x) == 1
    end = jnp.where(x > 0, 1, _sign(n)).astype(x.dtype)
    return jnp.where(is_end, end, recurrence(x, jnp.where(is_end, 0, n), x, step))


for _name, _function in {
    "hermite_polynomial_h": _hermite(2),
    "hermite_polynomial_he": _hermite(1),
    "laguerre_polynomial_l": _laguerre,
    "legendre_polynomial_p": _legendre,
}.items():
    _polynomial(_name, _function)
