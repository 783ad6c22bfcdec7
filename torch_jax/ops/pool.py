"""Average and maximum pooling of one, two and three dimensions, adaptive too, and unpooling.

Maxima are taken along one dimension after another, last first, which finds the same element as
PyTorch's scan of the whole window does: the first of equals, the last of NaNs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.budgets import ELEMENTS_OF_A_MAXIMUM
from torch_jax.ops.conv_forms import full
from torch_jax.ops.derivatives import differentiated_as, transposed
from torch_jax.ops.promotion import category, opmath
from torch_jax.ops.registry import op
from torch_jax.ops.scatter import identity


class _Dim:
    """The windows along one dimension."""

    def __init__(self, size, kernel, stride, padding, dilation, ceil_mode):
        self.size, self.stride, self.padding, self.dilation = size, stride, padding, dilation
        span = size + 2 * padding - dilation * (kernel - 1) - 1
        self.count = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
        # the last window must begin inside the input or its left padding
        if ceil_mode and (self.count - 1) * stride >= size + padding:
            self.count -= 1
        if ceil_mode and isinstance(size, int):  # a window may be larger than the padded input
            kernel = min(kernel, -(-(size + 2 * padding) // dilation))
        self.kernel = kernel
        end = (self.count - 1) * stride + dilation * (kernel - 1) + 1
        self.edges = padding, jax.core.max_dim(0, end - size - padding)

    def slice(self, x: jax.Array, offset: int, axis: int) -> jax.Array:
        """Return, of the padded input, the elements that are at ``offset`` in their windows."""
        start = offset * self.dilation
        stop = start + (self.count - 1) * self.stride + 1
        return lax.slice_in_dim(x, start, stop, self.stride, axis)


def _dims(shape, n, kernel, stride, padding, dilation, ceil_mode) -> list[_Dim]:
    kernel = full(kernel, n)
    stride = full(stride, n) if stride else kernel
    rest = zip(shape[-n:], kernel, stride, full(padding, n), full(dilation, n), strict=True)
    return [_Dim(*each, ceil_mode) for each in rest]


# ---- average ----------------------------------------------------------------------------------


def _divisor(dims: list[_Dim], count_include_pad: bool) -> Any:
    """Return the number of elements of each window: of the input, or with its padding."""
    xp: Any = np if all(isinstance(d.count, int) for d in dims) else jnp
    total = xp.ones((), np.int64)
    for d in dims:
        begin = xp.arange(d.count) * d.stride - d.padding
        end = xp.minimum(begin + d.kernel, d.size + d.padding)
        if not count_include_pad:
            begin, end = xp.maximum(begin, 0), xp.minimum(end, d.size)
        total = total[..., None] * (end - begin)
    if xp is np and (total == total.flat[0]).all():
        return total.flat[0]
    return total


def _avg_pool(
    n,
    self,
    kernel_size,
    stride=(),
    padding=(0,),
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
):
    kernel, divisor = kernel_size, divisor_override
    dims = _dims(self.shape, n, kernel, stride, padding, (1,), ceil_mode)
    x = self.astype(opmath(self.dtype))
    lead = (1,) * (x.ndim - n)
    out = lax.reduce_window(
        x,
        np.zeros((), x.dtype)[()],
        lax.add,
        (*lead, *(d.kernel for d in dims)),
        (*lead, *(d.stride for d in dims)),
        [(0, 0)] * len(lead) + [d.edges for d in dims],
    )
    if not divisor:
        divisor = _divisor(dims, count_include_pad)
    return lax.div(out, jnp.broadcast_to(jnp.asarray(divisor, x.dtype), out.shape))


def _register_avg_pool(n: int) -> None:
    @op(f"avg_pool{n}d")
    def avg_pool(self, *options, **named):
        return _avg_pool(n, self, *options, **named)

    @op(f"avg_pool{n}d_backward")
    def avg_pool_backward(grad_output, self, *options):
        return transposed(lambda x: _avg_pool(n, x, *options), grad_output, self.shape)

    @op(f"_adaptive_avg_pool{n}d_backward")
    def adaptive_avg_pool_backward(grad_output, self):
        size = grad_output.shape[-n:]
        return transposed(lambda x: _adaptive_avg_pool(x, size), grad_output, self.shape)


def _adaptive_windows(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return begin and end of each of ``count`` windows that cover ``size`` elements."""
    i = np.arange(count)
    return i * size // count, -(-(i + 1) * size // count)


def _adaptive_mean(x: jax.Array, axis: int, count: int) -> jax.Array:
    size = x.shape[axis]
    if not isinstance(size, int):
        return _mean_of_any_size(x, axis, count)
    if size % max(count, 1) == 0 and count:
        shape = (*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
        return x.reshape(shape).mean(axis + 1)
    begin, end = _adaptive_windows(size, count)
    width = int((end - begin).max(initial=1))
    index = begin[:, None] + np.arange(width)
    inside = (index < end[:, None]).reshape(count, width, *[1] * (x.ndim - axis - 1))
    windows = jnp.take(x, np.minimum(index, size - 1), axis=axis)
    lengths = (end - begin).reshape(count, *[1] * (x.ndim - axis - 1))
    return jnp.where(inside, windows, 0).sum(axis + 1) / lengths.astype(x.dtype)


def _mean_of_any_size(x: jax.Array, axis: int, count: int) -> jax.Array:
    """Return the mean for a size that is a symbol of ``jax.export``: windows see all elements."""
    i, size = jnp.arange(count), x.shape[axis]
    begin, end = i * size // count, -(-(i + 1) * size // count)
    at = jnp.arange(size)
    inside = (at >= begin[:, None]) & (at < end[:, None])
    rest = [1] * (x.ndim - axis - 1)
    windows = jnp.where(inside.reshape(count, size, *rest), jnp.expand_dims(x, axis), 0)
    return windows.sum(axis + 1) / (end - begin).reshape(count, *rest).astype(x.dtype)


def _adaptive_avg_pool(x, output_size):
    x = x.astype(opmath(x.dtype))
    for i, count in enumerate(output_size):
        x = _adaptive_mean(x, x.ndim - len(output_size) + i, count)
    return x


@op("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(self, output_size):
    """Return means over as many windows as the output has elements, which may overlap."""
    if 0 in (self.shape[1:] if len(output_size) == 3 else self.shape[-2:]):  # as the CPU's kernels
        raise RuntimeError(f"there are no elements to take means of: {self.shape}")
    return _adaptive_avg_pool(self, output_size)


# ---- maximum ----------------------------------------------------------------------------------


def _flat_index(shape: tuple[int, ...], n: int) -> jax.Array:
    """Return each element's place among the last ``n`` dimensions, flattened."""
    place = jnp.arange(math.prod(shape[-n:]), dtype=jnp.int32).reshape(shape[-n:])
    return jnp.broadcast_to(place, shape)


def _maximum(candidates: Iterable[tuple[jax.Array, jax.Array]]) -> tuple[jax.Array, jax.Array]:
    """Return the largest of values with places; the place -1, of padding, loses to any other."""
    rest = iter(candidates)
    best, place = next(rest)
    for value, at in rest:
        better = (value > best) | (place < 0)
        if category(value.dtype) == 2:
            better |= value != value
        best, place = jnp.where(better, value, best), jnp.where(better, at, place)
    return best, place


def _max_pool(n, self, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    """Return maxima and their places in the input."""
    dims = _dims(self.shape, n, kernel_size, stride, padding, dilation, ceil_mode)
    values, places = self, _flat_index(self.shape, n)
    for axis in reversed(range(self.ndim - n, self.ndim)):
        dim = dims[axis - self.ndim]
        edges = [(0, 0, 0)] * self.ndim
        edges[axis] = (*dim.edges, 0)
        values = lax.pad(values, identity(self.dtype, "amax"), edges)
        places = lax.pad(places, jnp.int32(-1), edges)
        values, places = _maximum(
            (dim.slice(values, k, axis), dim.slice(places, k, axis)) for k in range(dim.kernel)
        )
    return values, places


def _max_pool_backward(
    n, grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices
):
    dims = _dims(self.shape, n, kernel_size, stride, padding, dilation, ceil_mode)
    if math.prod(d.kernel for d in dims) > ELEMENTS_OF_A_MAXIMUM:
        return _put_back(n, grad_output, indices, self.shape[-n:])
    grad = grad_output.astype(opmath(grad_output.dtype))
    lead = grad.ndim - n
    total = jnp.zeros((*self.shape[:lead], *(d.size for d in dims)), grad.dtype)
    # per element of the window: the gradients that belong there, moved to where they belong
    for offsets in itertools.product(*(range(d.kernel) for d in dims)):
        place = np.zeros((), np.int64)
        edges = [(0, 0, 0)] * lead
        for d, offset in zip(dims, offsets, strict=True):
            begin = offset * d.dilation - d.padding
            place = np.add.outer(place * d.size, begin + np.arange(d.count) * d.stride)
            reach = (d.count - 1) * d.stride + 1
            edges.append((begin, d.size - reach - begin, d.stride - 1))
        chosen = jnp.where(indices == place, grad, 0)
        total = total + lax.pad(chosen, np.zeros((), grad.dtype)[()], edges)
    return total


def _put_back(n, values, indices, size, method="add"):
    """Add each value at its place among the last ``n`` dimensions of a tensor of zeros."""
    lead = values.shape[: values.ndim - n]
    count, each = math.prod(lead), math.prod(values.shape[len(lead) :])
    values = values.astype(opmath(values.dtype)).reshape(count, each)
    flat = jnp.zeros((count, math.prod(size)), values.dtype)
    at = flat.at[jnp.arange(count)[:, None], indices.reshape(count, each)]
    return getattr(at, method)(values, mode="drop").reshape(*lead, *size)


def _register_max_pool(n: int) -> None:
    @op(f"max_pool{n}d_with_indices")
    def max_pool(self, *options, **named):
        return _max_pool(n, self, *options, **named)

    @op(f"max_pool{n}d_with_indices_backward")
    def max_pool_backward(grad_output, self, *options_and_indices):
        return _max_pool_backward(n, grad_output, self, *options_and_indices)

    @op(f"adaptive_max_pool{n}d")
    def adaptive_max_pool(self, output_size):
        values, places = self, _flat_index(self.shape, n)
        for axis in reversed(range(self.ndim - n, self.ndim)):
            begin, end = _adaptive_windows(self.shape[axis], output_size[axis - self.ndim])
            # past its end, a window repeats its last element, which changes nothing
            steps = [np.minimum(begin + k, end - 1) for k in range(int((end - begin).max()))]
            pairs = [(jnp.take(values, s, axis), jnp.take(places, s, axis)) for s in steps]
            values, places = _maximum(pairs)
        return values, places

    @op(f"fractional_max_pool{n}d")
    def fractional_max_pool(self, kernel_size, output_size, random_samples):
        values, places = self, _flat_index(self.shape, n)
        batch = self.shape[0] if self.ndim == n + 2 else 1  # there may be samples for more
        sample = random_samples[:batch].reshape(*self.shape[:-n], n)
        for i in range(n):
            axis = self.ndim - n + i
            kernel, count = kernel_size[i], output_size[i]
            drawn = sample[..., i if n == 3 else 1 - i]  # those of 2-d name the last one first
            starts = _fractional_starts(drawn, self.shape[axis], count, kernel)
            starts = jnp.expand_dims(starts, range(self.ndim - n, axis))
            starts = jnp.expand_dims(starts, range(axis + 1, self.ndim))
            shape = (*values.shape[:axis], count, *values.shape[axis + 1 :])
            index = jnp.broadcast_to(starts, shape)
            take = functools.partial(jnp.take_along_axis, axis=axis)
            steps = [index + k for k in range(kernel)]
            values, places = _maximum((take(values, at), take(places, at)) for at in steps)
        return values, places

    @op(f"adaptive_max_pool{n}d_backward", f"fractional_max_pool{n}d_backward")
    def put_back(grad_output, self, *sizes_and_indices):
        return _put_back(n, grad_output, sizes_and_indices[-1], self.shape[-n:])


def _fractional_starts(sample, size: int, count: int, kernel: int):
    """Return the starts of windows along one dimension, for each (batch, channel)."""
    if count == 1:
        return jnp.full((*sample.shape, 1), size - kernel)
    alpha = jnp.asarray((size - kernel) / (count - 1), sample.dtype)
    i = jnp.arange(count).astype(sample.dtype)
    starts = ((i + sample[..., None]) * alpha).astype(jnp.int32)
    starts -= (sample[..., None] * alpha).astype(jnp.int32)
    return jnp.where(jnp.arange(count) == count - 1, size - kernel, starts)


# ---- unpooling --------------------------------------------------------------------------------


@differentiated_as(_put_back)  # values that share a place all have the gradient of that place
def _put(n, values, indices, size):
    return _put_back(n, values, indices, size, "set")


def _check_unpool(indices, output_size):
    ok = ((indices >= 0) & (indices < math.prod(output_size))).all()
    size = "x".join(map(str, output_size))
    return ok, f"Found an invalid max index: output volumes are of size {size}", RuntimeError


@op("max_unpool2d", channels_last=("self",), check=_check_unpool)
@op("max_unpool3d", check=_check_unpool)
def max_unpool(self, indices, output_size, *_stride_and_padding):
    """Put each value at its place in a tensor of zeros."""
    return _put(len(output_size), self, indices, output_size)


for _n in (2, 3):
    _register_avg_pool(_n)
    _register_max_pool(_n)
