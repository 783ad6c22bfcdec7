"""Factorizations of symmetric and Hermitian matrices that need not be definite.

``P A Pᵀ = L D Lᴴ`` with D of blocks of one or two rows, by the pivoting of Bunch and Kaufman.
Factors and pivots are in the form of LAPACK's ``sytrf`` and ``hetrf`` for the lower triangle: the
rows of a column of L are in the order that they had when the column was eliminated, a pivot is
counted from 1, and two equal negative ones belong to a block of two, whose second row was swapped.
JAX has no such factorization.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from torch_jax.ops.linalg import hermitian_of, raised, raises
from torch_jax.ops.linalg_solve import batched, triangular
from torch_jax.ops.registry import column_major, op

_ALPHA = (1 + math.sqrt(17)) / 8  # bounds the growth of elements best


class _State(NamedTuple):
    """The state half way through: rows from ``k`` on of ``rest`` are to be eliminated."""

    k: jax.Array
    rest: jax.Array
    factor: jax.Array
    pivots: jax.Array
    info: jax.Array


def _size(x: jax.Array) -> jax.Array:
    """Return the size by which pivots are compared: of complex numbers not the absolute value."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)


def _largest(x: jax.Array, where: jax.Array) -> tuple[jax.Array, jax.Array]:
    sizes = jnp.where(where, _size(x), 0)
    index = jnp.argmax(jnp.where(where, sizes, -1))
    return sizes[index], index


def _choose(a: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the row to swap with, a flag of a block of two, and a flag of a zero column."""
    rows = jnp.arange(len(a))
    diagonal = _size(a[k, k])
    below, row = _largest(a[:, k], rows > k)
    beside, _ = _largest(a[row], (rows >= k) & (rows != row))
    singular = (jnp.maximum(diagonal, below) == 0) | jnp.isnan(diagonal)
    stay = singular | (diagonal >= _ALPHA * below)
    stay |= diagonal >= _ALPHA * below * (below / jnp.where(beside == 0, 1, beside))
    two = ~stay & ~(_size(a[row, row]) >= _ALPHA * beside)
    return jnp.where(stay, k, row), two, singular


def _swapped(a: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    order = jnp.arange(len(a)).at[i].set(j).at[j].set(i)
    return a[order][:, order]


def _eliminate(state: _State, conj: Callable[[Any], Any]) -> _State:
    """Eliminate a block of one or two rows."""
    k, a, factor, pivots, info = state
    rows = jnp.arange(len(a))
    pivot, two, singular = _choose(a, k)
    a = _swapped(a, jnp.where(two, k + 1, k), pivot)
    second = jnp.minimum(k + 1, len(a) - 1)
    x, y = a[:, k], a[:, second]
    d, e, b = a[k, k], a[second, second], a[second, k]

    one_x = jnp.where(singular, 0, x / jnp.where(singular, 1, d))
    # scaled by the corner, which is larger than the diagonal, so that nothing overflows
    corner = jnp.where(two, jnp.abs(b) if conj is jnp.conj else b, 1)
    d, e, b = d / corner, e / corner, b / corner
    scale = 1 / jnp.where(two, d * e - b * conj(b), 1) / corner
    two_x, two_y = scale * (e * x - b * y), scale * (d * y - conj(b) * x)

    w, z = jnp.where(two, two_x, one_x), jnp.where(two, two_y, 0)
    last = jnp.where(two, k + 1, k)  # of the block; its own rows hold D
    first_column = jnp.where(rows > last, w, jnp.where(rows >= k, x, 0))
    second_column = jnp.where(rows > last, z, jnp.where(rows == last, y, 0))
    column = jnp.where(two, second_column, factor[:, second])
    factor = factor.at[:, second].set(column).at[:, k].set(first_column)
    number = jnp.where(two, -pivot - 1, pivot + 1).astype(pivots.dtype)
    pivots = jnp.where((rows == k) | (two & (rows == k + 1)), number, pivots)
    rest = a - jnp.outer(w, conj(x)) - jnp.outer(z, conj(y))
    info = jnp.where(singular & (info == 0), k + 1, info).astype(info.dtype)
    return _State(last + 1, rest, factor, pivots, info)


@op("linalg_ldl_factor_ex", concrete=raises)
def linalg_ldl_factor_ex(self, *, hermitian=False, check_errors=False):
    """Read the lower triangle; return zeros above the diagonal, pivots and info in int32."""
    n = self.shape[-1]

    def factorize(a):
        conj = jnp.conj if hermitian else jnp.asarray
        zeros = jnp.zeros(n, jnp.int32)
        start = _State(jnp.int32(0), a, jnp.zeros_like(a), zeros, jnp.int32(0))
        end = jax.lax.while_loop(lambda s: s.k < n, lambda s: _eliminate(s, conj), start)
        return end.factor, end.pivots, end.info

    if hermitian:
        whole = hermitian_of(self, lower=True)
    else:
        whole = jnp.tril(self) + jnp.tril(self, -1).mT
    for _ in self.shape[:-2]:
        factorize = jax.vmap(factorize)
    if self.size == 0:
        pivots, info = jnp.zeros(self.shape[:-1], jnp.int32), jnp.zeros(self.shape[:-2], jnp.int32)
        return self, pivots, info
    factor, pivots, info = factorize(whole)
    raised(info, "torch.linalg.ldl_factor_ex", check_errors)
    return column_major(factor), pivots, info


def _unpacked(factor: jax.Array, pivots: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return L in the last order of its rows, that order, and the first rows of blocks of two."""
    n = len(factor)
    columns = jnp.arange(n)

    def swap(k, state):
        lower, order, begins = state
        paired = pivots[k] < 0
        begin = paired & ~begins[k - 1]
        j = jnp.where(begin, k, jnp.abs(pivots[k]) - 1)
        left = columns < jnp.where(paired, k - 1, k)  # of the block that row k is in
        row_k, row_j = lower[k], lower[j]
        lower = lower.at[k].set(jnp.where(left, row_j, row_k))
        lower = lower.at[j].set(jnp.where(left, row_k, lower[j]))
        order = order.at[k].set(order[j]).at[j].set(order[k])
        return lower, order, begins.at[k].set(begin)

    start = jnp.tril(factor, -1), columns, jnp.zeros(n, bool)
    return jax.lax.fori_loop(0, n, swap, start)


def _solve_blocks(factor, begins, b, conj):
    """Solve D x = b for D of blocks of one and two rows."""
    ends = jnp.roll(begins, 1)
    diagonal = jnp.diagonal(factor)
    corner = jnp.append(jnp.diagonal(factor, -1), 0)
    corner = jnp.where(begins, conj(corner), jnp.roll(corner, 1))  # D[i, i's partner]
    partner = jnp.arange(len(factor)) + begins - ends
    paired = begins | ends
    # rows and columns divided by the corner, as in the factorization
    size = jnp.where(paired, corner, 1)
    mine, other = diagonal / conj(size), diagonal[partner] / size
    scale = 1 / jnp.where(paired, mine * other - 1, 1) / conj(size)
    single = b / jnp.where(paired, 1, diagonal)[:, None]
    two = scale[:, None] * (other[:, None] * b - b[partner])
    return jnp.where(paired[:, None], two, single)


@op("linalg_ldl_solve")
def linalg_ldl_solve(LD, pivots, B, *, hermitian=False):
    """Solve ``A x = B`` by the factors of A."""
    factor, b = batched(LD, B)
    if b.size == 0:
        return b
    pivots = jnp.broadcast_to(pivots, factor.shape[:-1])
    conj = jnp.conj if hermitian else jnp.asarray

    def solve(factor, pivots, b):
        lower, order, begins = _unpacked(factor, pivots)
        rows = jnp.arange(len(begins))
        corners = (rows[:, None] == rows + 1) & begins  # where D, not L, is below the diagonal
        lower = jnp.where(corners, 0, lower)
        y = triangular(lower, b[order], upper=False, unit=True)
        y = _solve_blocks(factor, begins, y, conj)
        y = triangular(lower, y, upper=False, unit=True, transpose=True, conjugate=hermitian)
        return y[jnp.argsort(order)]

    for _ in factor.shape[:-2]:
        solve = jax.vmap(solve)
    return solve(factor, pivots, b)
