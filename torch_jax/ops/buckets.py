"""Results whose sizes depend on values, in arrays of a few lengths: few programs.

A count comes to the host, since PyTorch's shapes are numbers. Later arrays are as long as the next
power of two, with their true size in :class:`~torch_jax.ops.registry.Leading`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from torch_jax.budgets import ELEMENTS_OF_A_BUCKET
from torch_jax.ops.on_host import on_host
from torch_jax.ops.registry import Leading


def length_for(count: int, most: int | None = None) -> int:
    """Return the next power of two, ``ELEMENTS_OF_A_BUCKET`` at least and ``most`` at most.

    >>> length_for(3), length_for(17), length_for(17, most=20)
    (16, 32, 20)
    """
    length = max(ELEMENTS_OF_A_BUCKET, 1 << (count - 1).bit_length() if count else 0)
    return length if most is None else min(length, most)


_nonzero = jax.jit(jnp.count_nonzero)


def count_of(mask: jax.Array) -> int:
    """Return the number of places in which a concrete mask holds."""
    return int(on_host(_nonzero(mask)))


def compress(x: Any, mask: Any) -> Any:
    """Return the elements of a concrete vector where a concrete vector ``mask`` holds."""
    count = count_of(mask)
    return Leading(_compress(x, mask, length_for(count, mask.size)), (count,))


@functools.partial(jax.jit, static_argnames="length")
def _compress(x, mask, length: int):
    (at,) = jnp.nonzero(mask, size=length)
    return x[at]


def positions(x: jax.Array, count: int) -> Leading:
    """Return the positions of the ``count`` nonzero elements, a column for each dimension."""
    flat = _positions(x, max(count, 1), length_for(count, x.size))
    return Leading(flat, (count, x.ndim), (1, max(count, 1)))


@functools.partial(jax.jit, static_argnames="length")
def _positions(x, count, length: int):
    """Put each column after the last element of the column before it, at ``count``."""
    return _packed(jnp.stack(jnp.nonzero(x, size=length)), 1, count)


def _packed(padded, axis: int, count):
    """Return a vector that begins with the first ``count`` along an axis, without gaps."""
    if axis == 0:
        return padded.reshape(-1)
    length, inner = padded.shape[axis], math.prod(padded.shape[axis + 1 :])
    at = jnp.arange(padded.size)
    outer, within, last = at // (count * inner), at // inner % count, at % inner
    return padded.reshape(-1).at[(outer * length + within) * inner + last].get(mode="clip")


# ---- advanced indexing with masks


class Masked(NamedTuple):
    """Indices with some masks, which all hold in equally many places."""

    indices: list[Any]  # one for each dimension or, a mask, for several; None for a whole dimension
    masks: tuple[bool, ...]  # which of them are masks
    length: int  # how many positions each mask is padded to
    shape: tuple[int, ...]  # of the elements that the indices pick
    axis: int  # of ``shape``, along which the masks' positions lie

    @property
    def places(self) -> int:
        """Return the number of places in which each mask holds."""
        return self.shape[self.axis]

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether values of a shape are equal for all places of the masks."""
        from_the_end = len(self.shape) - self.axis
        return len(shape) < from_the_end or shape[-from_the_end] == 1


def masked(x: jax.Array, indices: list[Any], masks: tuple[bool, ...]) -> Masked | None:
    """Return the indices of ``x`` with their count; None where masks cannot be padded.

    That is the case if they hold in different numbers of places, or beside an index tensor as long
    as their positions.
    """
    mine = [i for i, m in zip(indices, masks, strict=True) if m]
    others = [i for i, m in zip(indices, masks, strict=True) if not m and i is not None]
    if any(i.ndim and i.shape[-1] != 1 for i in others) or not all(mask.ndim for mask in mine):
        return None
    count, *different = {count_of(mask) for mask in mine}
    if different:
        return None
    picked: list[bool] = []  # for each dimension, whether an index picks from it
    for index, mask in zip(indices, masks, strict=True):
        picked += [True] * index.ndim if mask else [index is not None]
    picked += [False] * (x.ndim - len(picked))
    first, end = picked.index(True), len(picked) - picked[::-1].index(True)
    first = first if all(picked[first:end]) else 0
    block = np.broadcast_shapes((count,), *(i.shape for i in others))
    rest = [n for n, flag in zip(x.shape, picked, strict=True) if not flag]
    length = length_for(count, min(mask.size for mask in mine))
    shape = (*rest[:first], *block, *rest[first:])
    return Masked(indices, masks, length, shape, first + len(block) - 1)


def at(x: jax.Array, indices: list[Any], masks: tuple[bool, ...], length: int) -> tuple:
    """Return the index tuple for ``x.at``; positions that pad lie outside of ``x``."""
    result: list[Any] = []
    for index, mask in zip(indices, masks, strict=True):
        if mask:
            outside = x.shape[len(result) : len(result) + index.ndim]
            result += jnp.nonzero(index, size=length, fill_value=outside)
        else:
            result.append(slice(None) if index is None else index)
    return tuple(result)


def take(x: jax.Array, given: Masked) -> Leading:
    """Return ``x[indices]``."""
    indices, masks, length, shape, axis = given
    return Leading(_take(x, indices, masks, length, axis, max(given.places, 1)), shape)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _take(x, indices, masks, length, axis, count):
    return _packed(x.at[at(x, indices, masks, length)].get(mode="fill"), axis, count)
