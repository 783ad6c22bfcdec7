"""Gather and scatter along a dimension, and reductions into positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax.ops.derivatives import differentiated_as
from torch_jax.ops.indexing import along, check_dim, dim_bounds, refuse_other_slices, strict, write
from torch_jax.ops.promotion import category
from torch_jax.ops.registry import op


def _ranked(*arrays):
    """Return zero-dim arrays as vectors of one element."""
    return [x.reshape(-1) if x.ndim == 0 else x for x in arrays]


def _position(x, dim: int, index) -> tuple:
    """Return the index tuple for ``x.at``: ``index`` along ``dim``, own positions elsewhere."""
    dim %= x.ndim
    index = strict(index, x.shape[dim])
    # JAX joins all positions into one array: int32 is half of it
    if all(isinstance(size, int) and size < 2**31 for size in x.shape):
        index = jnp.minimum(index, x.shape[dim]).astype(jnp.int32)
    iotas = [lax.broadcasted_iota(index.dtype, index.shape, d) for d in range(x.ndim)]
    return (*iotas[:dim], index, *iotas[dim + 1 :])


def _corner(src, shape):
    """Return the part of ``src`` that an index of this shape takes."""
    return lax.slice(src, (0,) * src.ndim, shape)


@op("gather", check=dim_bounds)
def gather(self, dim, index, *, sparse_grad=False):
    """Do ``jnp.take_along_axis``, but other dimensions may be shorter in ``index``."""
    if index.size == 0:  # of any rank
        return jnp.zeros(index.shape, self.dtype)
    x, at = _ranked(self, index)
    dim %= x.ndim
    shape = tuple(
        n if d == dim else m for d, (n, m) in enumerate(zip(x.shape, at.shape, strict=True))
    )
    at = strict(at, x.shape[dim])
    result = jnp.take_along_axis(_corner(x, shape), at, dim, mode="fill")
    return result.reshape(index.shape)


def _combine(self, dim: int, index, src, method: str):
    """Do ``x.at[…].<method>(src)`` along ``dim``; ``src`` may be a number."""
    if index.size == 0:  # of any rank
        return self
    x, at = _ranked(self, index)
    if getattr(src, "ndim", 0):
        src = _corner(src, at.shape)
    src = jnp.broadcast_to(jnp.asarray(src).astype(x.dtype), at.shape)
    return write(x, _position(x, dim, at), src, method).reshape(self.shape)


_METHODS = {
    "set": "set",
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "multiply",
    "prod": "multiply",
    "amax": "max",
    "amin": "min",
}


@op("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", check=dim_bounds)
def scatter(self, dim, index, src, *, reduce="set"):
    """Write, add or multiply; of equal positions the last one wins where JAX runs on the CPU."""
    return _combine(self, dim, index, src, _METHODS[reduce])


@op("scatter_add", check=dim_bounds)
def scatter_add(self, dim, index, src):
    """Add; for bool, or."""
    return _combine(self, dim, index, src, "add")


def identity(dtype, reduce: str):
    """Return the value that leaves any other unchanged under a reduction."""
    if reduce in ("sum", "mean"):
        return jnp.zeros((), dtype)
    if reduce == "prod":
        return jnp.ones((), dtype)
    if category(dtype) == 2:
        return jnp.asarray(-jnp.inf if reduce == "amax" else jnp.inf, dtype)
    if category(dtype) == 0:
        return jnp.asarray(reduce == "amin")
    info = jnp.iinfo(dtype)
    return jnp.asarray(info.min if reduce == "amax" else info.max, dtype)


def _reduce_into(self, into, reduce: str, include_self: bool, src):
    """Reduce ``src`` into ``self``; ``into(x, src, method)`` is the scatter.

    Without ``include_self`` the positions written start from the identity. A mean divides by how
    many values came together; for integers it rounds down.
    """
    touched: Any = None
    if reduce == "mean" or not include_self:
        counts = into(jnp.zeros(self.shape, jnp.int32), jnp.ones_like(src, jnp.int32), "add")
        touched = counts > 0
    start = self if include_self else jnp.where(touched, identity(self.dtype, reduce), self)
    result = into(start, src, _METHODS[reduce])
    if reduce != "mean":
        return result
    counts = jnp.maximum(counts + include_self, 1).astype(result.dtype)
    mean = result // counts if category(result.dtype) == 1 else result / counts
    return jnp.where(touched, mean, self)


def _shared_by_extremes(self, into, reduce: str, include_self: bool, src):
    """Return extremes as means of equal elements, which share their gradient evenly."""
    if reduce not in ("amax", "amin"):
        return _reduce_into(self, into, reduce, include_self, src)
    result = lax.stop_gradient(_reduce_into(self, into, reduce, include_self, src))

    def put(values):
        return into(jnp.zeros(self.shape, values.dtype), values, "add")

    at_src = jax.vjp(put, jnp.zeros(src.shape, self.dtype))[1](result)[0]
    own, given = self == result, src == at_src
    shares = own + put(given.astype(self.dtype))
    if not include_self:
        own &= put(jnp.ones(src.shape, self.dtype)) == 0
    return (jnp.where(own, self, 0) + put(jnp.where(given, src, 0))) / shares


def _enter_reduction(name: str, place: Callable[..., Any], **options: Any) -> None:
    """Enter a reduction of the elements of each position: sum, prod, mean, amax or amin.

    ``place`` returns the scatter and its source, given all but the kind of reduction.
    """

    def with_shares(self, dim, index, src, reduce, *, include_self=True, by=_shared_by_extremes):
        into, src = place(self, dim, index, src)
        return by(self, into, reduce, include_self, src)

    @op(name, **options)
    @differentiated_as(with_shares)
    def lowering(self, dim, index, src, reduce, *, include_self=True):
        how: Any = {"include_self": include_self, "by": _reduce_into}
        return with_shares(self, dim, index, src, reduce, **how)


def _elements(self, dim, index, src):
    return lambda x, values, method: _combine(x, dim, index, values, method), src


def _slices(self, dim, index, source):
    if source.ndim == self.ndim > 0:
        refuse_other_slices(self.shape, source.shape, dim)
    source = source.reshape(source.shape or (1,)).astype(self.dtype)
    if index.size != source.shape[dim]:  # JAX broadcasts one slice
        raise ValueError(f"{index.size} indices of {source.shape[dim]} slices")

    def into(x, values, method):
        flat, at = along(x, dim, index)
        return write(flat, at, values, method).reshape(x.shape)

    return into, source


_enter_reduction("scatter_reduce.two", _elements, check=dim_bounds)
_enter_reduction("index_reduce", _slices, host=("index",), check=check_dim)
