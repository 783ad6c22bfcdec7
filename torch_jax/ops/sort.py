"""Order: sorting, selection by rank, search in sorted sequences, and histograms.

NaN is the greatest number, as in PyTorch and in XLA's sort.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax import target
from torch_jax.ops import buckets
from torch_jax.ops.derivatives import differentiated_as
from torch_jax.ops.on_host import on_host
from torch_jax.ops.promotion import category, promote
from torch_jax.ops.reduction import largest, smallest
from torch_jax.ops.registry import Leading, op


def _last(self, dim: int):
    """Return ``self`` with ``dim`` moved last; a zero-dim tensor as a vector of one."""
    return self.reshape(1) if self.ndim == 0 else jnp.moveaxis(self, dim, -1)


def _back(x, self, dim: int):
    """Undo :func:`_last`."""
    return x.reshape(()) if self.ndim == 0 else jnp.moveaxis(x, -1, dim)


def sorted_with_positions(x, descending: bool = False):
    """Sort the last axis stably; return the values and their int64 positions before."""
    if descending:
        # reversed twice, so that equal elements keep their order
        values, order = sorted_with_positions(x[..., ::-1])
        return values[..., ::-1], x.shape[-1] - 1 - order[..., ::-1]
    if target.on_cpu() and x.dtype.itemsize <= 4 and category(x.dtype) < 3:
        order = lax.sort(_packed(x), is_stable=False) & 0xFFFFFFFF
        order = jnp.minimum(order, x.shape[-1] - 1)  # as they are: their bounds can be read
        return jnp.take_along_axis(x, order, -1, mode="promise_in_bounds"), order
    position = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    values, order = lax.sort((x, position), num_keys=1, is_stable=True)
    return values, order.astype(jnp.int64)


def _packed(x):
    """Return int64 in the order of short numbers, the position in the lower half.

    XLA's CPU backend sorts single integers four times faster than pairs.
    """
    if category(x.dtype) == 2:
        x = jnp.where(x == 0, 0, jnp.where(x != x, jnp.nan, x)).astype(jnp.float32)
        bits = lax.bitcast_convert_type(x, jnp.int32)
        x = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # of negative numbers, the other way round
    return (x.astype(jnp.int64) << 32) | lax.broadcasted_iota(jnp.int64, x.shape, x.ndim - 1)


@op("sort", "sort.stable")
def sort(self, dim=-1, descending=False, *, stable=None):
    """Sort stably, as PyTorch's on CPU does in practice."""
    values, order = sorted_with_positions(_last(self, dim), descending)
    return _back(values, self, dim), _back(order, self, dim)


@op("topk")
def topk(self, k, dim=-1, largest=True, sorted=True):
    """Return the ``k`` greatest or least, in order, also without ``sorted``."""
    x = _last(self, dim)
    if largest:
        if category(x.dtype) == 2:
            x = lax.select(x != x, jnp.full_like(x, jnp.nan), x)  # of either sign
        values, order = lax.top_k(x, k)
    else:
        values, order = (y[..., :k] for y in sorted_with_positions(x))
    return _back(values, self, dim), _back(order.astype(jnp.int64), self, dim)


# ---- selection by rank


def _refuse_empty(x) -> None:
    if x.shape[-1] == 0:
        raise IndexError("Expected reduction dim to have non-zero size.")


def _at_rank(x, rank):
    """Return the element of a rank along the last axis, and its position; a rank or several."""
    _refuse_empty(x)
    values, order = sorted_with_positions(x)
    rank = jnp.broadcast_to(jnp.asarray(rank), x.shape[:-1])[..., None]
    return (jnp.take_along_axis(y, rank, -1, mode="clip")[..., 0] for y in (values, order))


def _reduced(results, self, dim: int, keepdim: bool):
    if self.ndim == 0:
        return tuple(r.reshape(()) for r in results)
    return tuple(jnp.expand_dims(r, dim) if keepdim else r for r in results)


@op("kthvalue")
def kthvalue(self, k, dim=-1, keepdim=False):
    """Return the k-th least; of equal elements the position is the k-th in stable order."""
    return _reduced(_at_rank(_last(self, dim), k - 1), self, dim, keepdim)


def _enter_median(name: str, rank) -> None:
    """Enter a lower median, by its rank among so many elements with so many NaNs, the greatest."""

    def function(x):
        nans = jnp.isnan(x).sum(-1) if category(x.dtype) == 2 else 0
        return _at_rank(x, rank(x.shape[-1], nans))

    @op(f"{name}.dim")
    def along(self, dim, keepdim=False):
        return _reduced(function(_last(self, dim)), self, dim, keepdim)

    def evenly(self):
        x, found = self.reshape(-1), whole(lax.stop_gradient(self))
        equal = (x == found) | ((x != x) & (found != found))
        return jnp.sum(jnp.where(equal, x, 0)) / jnp.sum(equal)

    @op(name)
    @differentiated_as(evenly)
    def whole(self):
        if self.size == 0:  # NaN, and for integers the cast of NaN
            return jnp.full((), jnp.nan).astype(self.dtype)
        return next(iter(function(self.reshape(-1))))


# the first NaN where there is one; or the median of the others, of nothing NaN
_enter_median("median", lambda n, nans: jnp.where(nans > 0, n - nans, (n - 1) // 2))
_enter_median("nanmedian", lambda n, nans: jnp.maximum(n - nans - 1, 0) // 2)


@op("mode")
def mode(self, dim=-1, keepdim=False):
    """Return the most frequent value, of several the least, and its last position."""
    _refuse_empty(_last(self, dim))
    values, order = sorted_with_positions(_last(self, dim))
    position = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    begins = jnp.concatenate(
        [jnp.ones_like(values[..., :1], bool), values[..., 1:] != values[..., :-1]], -1
    )
    start = lax.cummax(jnp.where(begins, position, 0), axis=values.ndim - 1)
    longest = jnp.argmax(position - start, -1, keepdims=True)  # the first run of that length
    results = [jnp.take_along_axis(x, longest, -1)[..., 0] for x in (values, order)]
    return _reduced(results, self, dim, keepdim)


# ---- search


def search(sequence, x, right: bool):
    """Return the places of ``x`` in ``sequence``, sorted along its last axis; NaN at the end.

    A vector serves ``x`` of any shape; else the leading dimensions of both agree.
    """
    size = sequence.shape[-1]
    flat = sequence.ndim == 1
    rows = sequence[None] if flat else sequence
    keys = x.reshape(1, -1) if flat else x

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) // 2
        probe = jnp.take_along_axis(rows, middle, -1, mode="clip")
        # not the opposite comparison: this one places NaN
        further = ~(probe > keys) if right else ~(probe >= keys)
        further &= low < high
        return jnp.where(further, middle + 1, low), jnp.where(further, high, middle)

    if size == 0 or keys.size == 0:
        return jnp.zeros(x.shape, jnp.int64)
    bounds = jnp.zeros(keys.shape, jnp.int64), jnp.full(keys.shape, size, jnp.int64)
    low, _ = lax.fori_loop(0, size.bit_length(), halve, bounds)
    return low.reshape(x.shape)


@op("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(sorted_sequence, self, *, out_int32=False, right=False, side=None, sorter=None):
    """Search; ``side`` wins over ``right``; ``sorter`` puts the sequence into order."""
    if sorter is not None:
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, -1)
    sequence, x = promote(sorted_sequence, self)
    return search(sequence, x, side == "right" if side else right)


@op("bucketize.Tensor", "bucketize.Scalar")
def bucketize(self, boundaries, *, out_int32=False, right=False):
    """Do :func:`searchsorted` with the arguments the other way round."""
    boundaries, x = promote(boundaries, self)
    return search(boundaries, x, right)


@op("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(elements, test_elements, *, assume_unique=False, invert=False):
    """Return whether each element is among the others, by a search in their sorted order."""
    x, others = promote(elements, test_elements)
    return jnp.isin(x, others, invert=invert, method="binary_search")


# ---- histograms


def _tally(position, count: int, weights):
    """Sum the weights at each position; positions out of range count nowhere."""
    position = jnp.where(position < 0, count, position)
    return jnp.zeros(count, weights.dtype).at[position].add(weights, mode="drop")


_sums = jax.jit(_tally, static_argnums=1)


def _widen(x, low, high, margin: float) -> tuple[jax.Array, jax.Array]:
    """Return the range of a histogram of ``x``, made wider where it is empty."""
    low, high = (jnp.asarray(v).astype(x.dtype) for v in (low, high))
    extra = jnp.where(low == high, jnp.asarray(margin, x.dtype), 0)
    # XLA would divide by a constant width through its rounded inverse
    return lax.optimization_barrier((low - extra, high + extra))


@op("histc")
def histc(self, bins=100, min=0, max=0):
    """Count in equal bins; elements out of range and NaN count nowhere."""
    if category(self.dtype) == 3:
        raise NotImplementedError("histc of complex numbers")
    x = self.reshape(-1)
    if x.size:
        is_all = min == max
        min, max = jnp.where(is_all, smallest(x), min), jnp.where(is_all, largest(x), max)
    low, high = _widen(x, min, max, 1)
    inside = (x >= low) & (x <= high)
    position = ((x - low) * bins / (high - low)).astype(jnp.int64)
    position = jnp.where(inside, jnp.minimum(position, bins - 1), -1)  # the last edge is inside
    return _tally(position, bins, jnp.ones_like(x))


def _even_edges(x, bins: int, range):
    """Return the edges of equal bins over a range, or over that of the vector ``x``."""
    least, most = range or ((smallest(x), largest(x)) if x.size else (0, 1))
    low, high = _widen(x, least, most, 0.5)
    return jnp.linspace(low, high, bins + 1, dtype=x.dtype)


def _edge_bin(edges, x):
    position = search(edges, x, right=True) - 1
    position = jnp.where(x == edges[-1], edges.size - 2, position)
    return jnp.where(x <= edges[-1], position, -1)


def _histogram(points, edges, weight, density):
    """Count the rows of a matrix in bins with these edges, a sequence for each column."""
    counts = tuple(e.size - 1 for e in edges)
    place = [_edge_bin(e, points[:, i]) for i, e in enumerate(edges)]
    inside = jnp.all(jnp.stack(place) >= 0, 0)
    position = jnp.where(inside, jnp.ravel_multi_index(place, counts, mode="clip"), -1)
    weights = jnp.ones_like(points[:, 0]) if weight is None else weight.reshape(-1)
    tally = _tally(position, math.prod(counts), weights).reshape(counts)
    if density:
        tally = tally / tally.sum()
        for i, e in enumerate(edges):
            tally = tally / jnp.expand_dims(jnp.diff(e), [d for d in range(len(edges)) if d != i])
    return tally


@op("histogram.bin_ct", static=("range",), meta=False)
def histogram_bins(self, bins=100, *, range=None, weight=None, density=False):
    """Count in equal bins over a range, or over that of the data; return their edges, too."""
    edges = _even_edges(self.reshape(-1), bins, range)
    return histogram_edges(self, edges, weight=weight, density=density)


@op("histogram.bins_tensor", meta=False)
def histogram_edges(self, bins, *, weight=None, density=False):
    """Count in bins whose edges are given."""
    return _histogram(self.reshape(-1, 1), [bins], weight, density), bins


def _points(self):
    return self.reshape(-1, self.shape[-1])


@op("_histogramdd_bin_edges", static=("range",), meta=False)
def histogramdd_bin_edges(self, bins, *, range=None, weight=None, density=False):
    """Return edges of equal bins for each column; ``range`` has two numbers for each."""
    ranges = [None] * len(bins) if range is None else zip(range[::2], range[1::2], strict=True)
    return [_even_edges(*each) for each in zip(_points(self).T, bins, ranges, strict=True)]


@op("_histogramdd_from_bin_cts", static=("range",), meta=False)
def histogramdd_from_bin_counts(self, bins, *, range=None, weight=None, density=False):
    """Count points, the last dimension, in equal bins."""
    edges = histogramdd_bin_edges(self, bins, range=range)
    return _histogram(_points(self), edges, weight, density)


@op("_histogramdd_from_bin_tensors", meta=False)
def histogramdd_from_bin_edges(self, bins, *, weight=None, density=False):
    """Count points, the last dimension, in bins whose edges are given."""
    return _histogram(_points(self), bins, weight, density)


@op(
    "bincount",
    concrete=True,
    meta=False,
    instead="use torch.zeros(n).index_add(0, x, weights), with n known",
)
def bincount(self, weights=None, minlength=0):
    """Count each number; sums of weights are float64 unless the weights are float32."""
    if self.ndim != 1 or category(self.dtype) != 1 or minlength < 0:
        raise RuntimeError(f"bincount of {self.aval} with {minlength=}")
    least, most = (int(on_host(f())) if self.size else -1 for f in (self.min, self.max))
    if (self.size and least < 0) or (weights is not None and weights.shape != self.shape):
        raise RuntimeError("bincount of negative numbers, or with other weights than numbers")
    if weights is None or not self.size:  # of nothing PyTorch counts, weights or not
        weights = jnp.ones(self.shape, jnp.int64)
    elif weights.dtype != jnp.float32:
        weights = weights.astype(jnp.float64)
    count = max(most + 1, minlength)
    sums = _sums(self.astype(jnp.int64), buckets.length_for(count), weights)
    return Leading(sums, (count,))
