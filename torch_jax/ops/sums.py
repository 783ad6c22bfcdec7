"""Sums and maxima of rows and columns, in the fastest form of the platform.

XLA's CPU backend reduces rows longer than 32 in parts, number by number, and keeps the parts in
memory between; over several dimensions it is ten times slower than over one, and a reshape between
two makes several of one again. So a row is cut here into slices that are combined pair by pair:
vector instructions, fused with the row's own computation. Columns are summed by 32 rows at a time,
as products with ones. Both are as exact as sums of parts are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax import target
from torch_jax.budgets import ROWS_OF_A_SUM

_Pairwise = Callable[[jax.Array, jax.Array], jax.Array]

_AT_ONCE = 32  # the longest reduction of XLA in one go


def width(length: int) -> int:
    """Return the width of a row's slices; 0 where the row is not to be cut.

    >>> [width(n) for n in (32, 48, 64, 100, 384, 1024, 4096)]
    [0, 8, 8, 0, 16, 32, 0]
    """
    widths = (n for n in (8, 16, _AT_ONCE) if length % n == 0 and length // n <= _AT_ONCE)
    return next(widths, 0) if length > _AT_ONCE else 0


def block(rows: int) -> int:
    """Return how many rows are summed at a time; 0 where all are.

    >>> [block(n) for n in (32, 48, 64, 1024, 260, 202, 211)]
    [0, 24, 32, 32, 26, 0, 0]
    """
    blocks = (n for n in range(_AT_ONCE, ROWS_OF_A_SUM - 1, -1) if rows % n == 0)
    return next(blocks, 0) if rows > _AT_ONCE else 0


def row_sum(x: jax.Array) -> jax.Array:
    """Return ``x.sum(-1, keepdims=True)``."""
    return _folded(jnp.add, x).sum(-1, keepdims=True)


def row_mean(x: jax.Array) -> jax.Array:
    """Return ``x.mean(-1, keepdims=True)``."""
    folded = _folded(jnp.add, x)
    if folded is x:
        return x.mean(-1, keepdims=True)
    return folded.sum(-1, keepdims=True) / x.shape[-1]


def row_max(x: jax.Array) -> jax.Array:
    """Return ``x.max(-1, keepdims=True)``; -inf of nothing."""
    return _folded(jnp.maximum, x).max(-1, keepdims=True, initial=-jnp.inf)


def column_sum(x: jax.Array, dims: int) -> jax.Array:
    """Return the sum over the first ``dims`` dimensions."""
    kept = x.shape[dims:]
    if not _is_for_here(x) or not (step := block(math.prod(x.shape[:dims]))):
        return x.sum(tuple(range(dims)))
    found = by_blocks(x.reshape(-1, step, math.prod(kept)))
    return (found.sum(0) if len(found) <= _AT_ONCE else column_sum(found, 1)).reshape(kept)


def by_blocks(x: jax.Array) -> jax.Array:
    """Sum ``[blocks, rows, columns]`` over rows, each block as a product with ones."""
    dims = (((1,), (1,)), ((0,), (0,)))
    ones = jnp.ones(x.shape[:2], x.dtype)
    return lax.dot_general(ones, x, dims, precision=lax.Precision.HIGHEST)


def _is_for_here(x: jax.Array) -> bool:
    """Return whether the forms of this file are for ``x``: real, of known shape, on one CPU.

    An array spread over devices would be moved between them.
    """
    alone = target.on_cpu() and target.device_count() == 1
    known = all(isinstance(n, int) for n in x.shape)  # an export's may be symbols
    return alone and known and x.size > 0 and x.dtype in (jnp.float32, jnp.float64)


def _folded(pairwise: _Pairwise, x: jax.Array) -> jax.Array:
    """Return each row's slices combined; ``x`` where it is not to be cut."""
    if not _is_for_here(x) or not (step := width(x.shape[-1])):
        return x
    return _together(pairwise, [x[..., at : at + step] for at in range(0, x.shape[-1], step)])


def _together(pairwise: _Pairwise, parts: Sequence[jax.Array]) -> jax.Array:
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return pairwise(_together(pairwise, parts[:middle]), _together(pairwise, parts[middle:]))
