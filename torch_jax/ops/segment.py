"""Reductions of neighbouring runs of a dimension, their lengths given for each batch."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from torch_jax.ops.derivatives import differentiated_as
from torch_jax.ops.indexing import write
from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op
from torch_jax.ops.sort import search

_METHODS = {"sum": "add", "mean": "add", "prod": "multiply", "max": "max", "min": "min"}
_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -jnp.inf, "min": jnp.inf}


class _Segments:
    """The segment of each element; arrays are seen as ``[batch, element, inner]``."""

    def __init__(self, lengths, offsets, shape, axis: int):
        bounds = lengths if offsets is None else offsets
        if axis % len(shape) != bounds.ndim - 1 or bounds.shape[:-1] != shape[: bounds.ndim - 1]:
            raise RuntimeError(f"segments of {bounds.shape} for data of {shape} along {axis}")
        if offsets is None:
            before = [(0, 0)] * (lengths.ndim - 1) + [(1, 0)]
            offsets = jnp.pad(jnp.cumsum(lengths, -1), before)
        offsets = offsets.reshape(-1, offsets.shape[-1])
        self.lengths = jnp.diff(offsets)[..., None]
        self.batch, self.count = self.lengths.shape[:2]
        self.size = shape[axis]
        self.shape = shape[: bounds.ndim - 1], shape[bounds.ndim :]
        position = lax.broadcasted_iota(offsets.dtype, (self.batch, self.size), 1)
        segment = search(offsets[:, 1:], position, right=True)
        segment = jnp.where(position < offsets[:, :1], self.count, segment)  # of none
        self.at = lax.broadcasted_iota(segment.dtype, segment.shape, 0), segment

    def split(self, x, size: int):
        """Return an array whose axis has this size, as ``[batch, size, inner]`` in ``opmath``."""
        return x.astype(opmath(x.dtype)).reshape(self.batch, size, -1)

    def join(self, x):
        """Undo :meth:`split`."""
        before, after = self.shape
        return x.reshape(*before, x.shape[1], *after)

    def reduce(self, x, method: str, initial=0):
        """Reduce ``[batch, element, inner]`` to ``[batch, segment, inner]``."""
        start = jnp.full((self.batch, self.count, x.shape[-1]), initial, x.dtype)
        return write(start, self.at, x, method)

    def spread(self, x):
        """Give each element the value of its segment, and 0 to elements of none."""
        return x.at[self.at].get(mode="fill", fill_value=0)

    def slopes(self, x, result, reduce: str, initial):
        """Return the derivative of its segment's result by each element.

        Equal extremes share it; that of a product leaves out each element in turn.
        """
        if reduce in ("max", "min"):
            chosen = (jnp.isnan(x) | (x == self.spread(result))).astype(x.dtype)
            return chosen / jnp.maximum(self.spread(self.reduce(chosen, "add")), 1)
        if reduce == "mean":
            return 1 / jnp.maximum(self.spread(self.lengths), 1)
        if reduce == "prod":
            return _product_of_others(self, x, 1 if initial is None else initial)
        return 1


def _check_lengths(data, lengths=None, axis=0, unsafe=False):
    if unsafe or lengths is None:
        return True, ""
    ok = jnp.all(lengths >= 0) & jnp.all(lengths.sum(-1) == data.shape[axis])
    return ok, "lengths must not be negative and sum to the size of data's axis", RuntimeError


def segment_reduce(
    data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None
):
    """Reduce; a mean's initial value counts in the sum, not in the divisor; of nothing NaN."""
    if indices is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported yet.")
    segments = _Segments(lengths, offsets, data.shape, axis)
    start = _NEUTRAL[reduce] if initial is None else initial
    result = segments.reduce(segments.split(data, segments.size), _METHODS[reduce], start)
    if reduce == "mean":
        nothing = jnp.nan if initial is None else result
        result = jnp.where(segments.lengths > 0, result / segments.lengths, nothing)
    return segments.join(result)


def _by_slopes(data, reduce, *, lengths=None, offsets=None, axis=0, initial=None, **options):
    fixed, bounds = lax.stop_gradient(data), {"lengths": lengths, "offsets": offsets, "axis": axis}
    result = segment_reduce(fixed, reduce, initial=initial, **bounds)
    segments = _Segments(lengths, offsets, data.shape, axis)
    x, of = segments.split(data, segments.size), segments.split(result, segments.count)
    slopes = segments.slopes(lax.stop_gradient(x), of, reduce, initial)
    return segments.join(segments.reduce(slopes * x, "add"))


op("segment_reduce", check=_check_lengths)(differentiated_as(_by_slopes)(segment_reduce))


@op("_segment_reduce_backward", meta=False)
def segment_reduce_backward(
    grad, output, data, reduce, *, lengths=None, offsets=None, axis=0, initial=None
):
    """Return the gradient of each element; elements of no segment have none."""
    segments = _Segments(lengths, offsets, data.shape, axis)
    x, result = segments.split(data, segments.size), segments.split(output, segments.count)
    grads = segments.spread(segments.split(grad, segments.count))
    grads = grads * segments.slopes(x, result, reduce, initial)
    inside = (segments.at[1] < segments.count)[..., None]
    return segments.join(jnp.where(inside, grads, 0)).astype(data.dtype)


def _product_of_others(segments: _Segments, x, initial):
    """Return the product of each element's segment without it, also where it is 0 or NaN."""
    zero, nan = x == 0, jnp.isnan(x)
    regular = jnp.where(zero | nan, 1, x)
    product = segments.spread(segments.reduce(regular, "multiply", initial)) / regular
    for mask, value in ((zero, 0), (nan, jnp.nan)):
        others = segments.spread(segments.reduce(mask.astype(x.dtype), "add")) - mask
        product = jnp.where(others > 0, product * value, product)
    return product
