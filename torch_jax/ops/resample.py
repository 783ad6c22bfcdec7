"""Interpolation to another size.

Interpolation is separable: along each dimension an output is a weighted sum of a few inputs,
whose indices and weights depend on sizes only and are made with NumPy, as is the transpose.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op


class Taps(NamedTuple):
    """The inputs that each output along a dimension reads, and their weights: (out, taps)."""

    place: np.ndarray
    weight: np.ndarray

    def merge(self) -> Taps:
        """Add up the weights of an input that an output reads twice, at an edge."""
        same = self.place[:, :, None] == self.place[:, None, :]
        first = same.argmax(2) == np.arange(self.place.shape[1])
        return Taps(self.place, np.where(first, (same * self.weight[:, None, :]).sum(2), 0))

    def transpose(self, size: int) -> Taps:
        """Return the outputs that read each of ``size`` inputs."""
        used = self.weight != 0
        outputs = np.broadcast_to(np.arange(len(self.place))[:, None], used.shape)[used]
        inputs, weights = self.place[used], self.weight[used]
        order = np.argsort(inputs, kind="stable")
        inputs, outputs, weights = inputs[order], outputs[order], weights[order]
        counts = np.bincount(inputs, minlength=size)
        column = np.arange(len(inputs)) - np.repeat(np.cumsum(counts) - counts, counts)
        index = np.zeros((size, max(1, counts.max(initial=0))), np.int64)
        weight = np.zeros(index.shape, self.weight.dtype)
        index[inputs, column], weight[inputs, column] = outputs, weights
        return Taps(index, weight)

    def apply(self, x: jax.Array, axis: int) -> jax.Array:
        """Return weighted sums along ``axis``; elements of weight 0 are not read, even NaN."""
        outputs, taps = self.place.shape
        if taps == 1 and (self.weight == 1).all():
            return _pick(x, self.place[:, 0], axis)
        windows = jnp.take(x, self.place.reshape(-1), axis)
        windows = windows.reshape(*x.shape[:axis], outputs, taps, *x.shape[axis + 1 :])
        weight = self.weight.reshape(outputs, taps, *[1] * (x.ndim - axis - 1))
        products = windows * weight.astype(x.dtype)
        if not self.weight.all():
            products = jnp.where(weight == 0, 0, products)
        return products.sum(axis + 1)


def _pick(x: jax.Array, index: np.ndarray, axis: int) -> jax.Array:
    """Return elements along ``axis``; without a gather where each is repeated equally often."""
    size, count = x.shape[axis], len(index)
    times = count // size
    if count % size or not np.array_equal(index, np.arange(count) // times):
        return jnp.take(x, index, axis)
    x = jnp.expand_dims(x, axis + 1)
    shape = (*x.shape[: axis + 1], times, *x.shape[axis + 2 :])
    return jnp.broadcast_to(x, shape).reshape(*shape[:axis], count, *shape[axis + 2 :])


# ---- where an output lies in the input --------------------------------------------------------


def _ratio(size: int, count: int, align_corners: bool, scale: float | None, real: type) -> float:
    """Return the distance in the input of two neighbours of the output."""
    if align_corners:
        return real(size - 1) / real(count - 1) if count > 1 else real(0)
    return real(1 / scale) if scale is not None and scale > 0 else real(size) / real(count)


def _source(size, count, align_corners, scale, real) -> np.ndarray:
    """Return coordinates in the input of the output's elements."""
    half = real(0 if align_corners else 0.5)
    i = np.arange(count).astype(real)
    return _ratio(size, count, align_corners, scale, real) * (i + half) - half


def _nearest(size, count, align_corners, scale, real, offset=0.0) -> Taps:
    i = np.arange(count).astype(real) + real(offset)
    index = np.floor(i * _ratio(size, count, False, scale, real)).astype(np.int64)
    return _ones(np.minimum(index, size - 1))


_nearest_exact = functools.partial(_nearest, offset=0.5)


def _nearest_by_size(size, count, align_corners, scale, real) -> Taps:
    """Do :func:`_nearest`; without the scale for sizes that stay or double."""
    if count in (size, 2 * size):
        return _ones(np.arange(count) * size // count)
    return _nearest(size, count, align_corners, scale, real)


def _ones(index: np.ndarray) -> Taps:
    return Taps(index[:, None], np.ones((len(index), 1)))


def _linear(size, count, align_corners, scale, real) -> Taps:
    """Copy a size that stays, under any scale."""
    if size == count:
        return _ones(np.arange(size))
    source = np.maximum(_source(size, count, align_corners, scale, real), 0)
    low = np.minimum(source.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    t = np.clip(source - low, 0, 1)
    return Taps(np.stack([low, high], 1), np.stack([1 - t, t], 1))


def _cubic(size, count, align_corners, scale, real) -> Taps:
    source = _source(size, count, align_corners, scale, real)
    low = np.minimum(np.floor(source), size - 1).astype(np.int64)
    t = np.clip(source - low, 0, 1)
    tap = np.arange(-1, 3)
    return Taps(np.clip(low[:, None] + tap, 0, size - 1), keys(t[:, None] - tap))


def keys(x, a=-0.75):
    """Return the weight of a neighbour at distance ``x`` in cubic interpolation (Keys, 1981)."""
    x = abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    where = np.where if isinstance(x, np.ndarray) else jnp.where
    return where(x < 1, near, where(x < 2, far, 0))


def _antialiased(filter: Callable, reach: float) -> Callable:
    """Return taps of a filter that widens with the input's size, so that nothing is skipped."""

    def taps(size, count, align_corners, scale, real) -> Taps:
        ratio = _ratio(size, count, align_corners, scale, real)
        widen = max(ratio, real(1))
        center = ratio * (np.arange(count).astype(real) + real(0.5))
        begin = np.maximum((center - reach * widen + 0.5).astype(np.int64), 0)
        end = np.minimum((center + reach * widen + 0.5).astype(np.int64), size)
        index = begin[:, None] + np.arange(max(1, (end - begin).max(initial=1)))
        weight = filter((index - center[:, None] + real(0.5)) / widen)
        weight = np.where(index < end[:, None], weight, 0)
        weight = weight / weight.sum(1, keepdims=True)
        return Taps(np.minimum(index, size - 1), weight)

    return taps


_ANTIALIASED = {
    "bilinear": _antialiased(lambda x: np.maximum(1 - abs(x), 0), 1),
    "bicubic": _antialiased(lambda x: keys(x, -0.5), 2),
    "lanczos": _antialiased(lambda x: np.where(abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0), 3),
}


# ---- the operators ----------------------------------------------------------------------------


def _taps(method, sizes, counts, align_corners, scales, dtype) -> list[Taps]:
    real = np.float64 if dtype in (np.float64, np.uint8) else np.float32
    each = zip(sizes, counts, scales, strict=True)
    return [method(size, count, align_corners, scale, real) for size, count, scale in each]


def _interpolate(x, method, output_size, align_corners, scales):
    n = len(output_size)
    if 0 in x.shape[1:] or min(output_size) < 1:
        raise RuntimeError(f"an image of {output_size} from one of {x.shape}")
    taps = _taps(method, x.shape[-n:], output_size, align_corners, scales, x.dtype)
    weighted = method not in (_nearest, _nearest_by_size, _nearest_exact)
    if weighted and x.dtype == jnp.uint8:
        return _interpolate_bytes(x, taps)
    if weighted:
        x = x.astype(opmath(x.dtype))
    for i, tap in enumerate(taps):
        axis = x.ndim - n + i
        if method in _ANTIALIASED.values() and output_size[i] == x.shape[axis]:
            continue  # copied, as on the CPU, whose gradient is the filter's all the same
        x = tap.apply(x, axis)
    return x


def _interpolate_bytes(x, taps):
    """Compute as PyTorch for uint8: 16-bit weights, rounded after each dimension, last first."""
    x = x.astype(jnp.int32)
    for axis, tap in zip(range(-1, -1 - len(taps), -1), reversed(taps), strict=True):
        if len(tap.place) == x.shape[axis]:
            continue
        tap = tap.merge()
        bits = max(b for b in range(23) if int(0.5 + tap.weight.max() * (1 << b)) < 1 << 15)
        weight = np.trunc(tap.weight * (1 << bits) + np.copysign(0.5, tap.weight))
        x = Taps(tap.place, weight.astype(np.int32)).apply(x, x.ndim + axis)
        x = jnp.clip((x + (1 << bits >> 1)) >> bits, 0, 255)
    return x


_SCALES = ("scales", "scales_d", "scales_h", "scales_w")


def _register(
    name: str, method: Callable, aligned: bool, backward_method: Callable | None = None
) -> None:
    """Enter the operator and its gradient; ``aligned``: it takes ``align_corners``.

    Where PyTorch's gradient belongs to another interpolation, ``backward_method`` is that.
    """

    def options(output_size, rest) -> Any:
        align_corners, *scales = rest if aligned else (False, *rest)
        return align_corners, scales + [None] * (len(output_size) - len(scales))

    def forward(self, output_size, *rest):
        return _interpolate(self, method, output_size, *options(output_size, rest))

    def backward(grad_output, output_size, input_size, *rest):
        sizes = input_size[-len(output_size) :]
        if method is _cubic and tuple(output_size) == tuple(sizes):
            return grad_output  # as in PyTorch, under any scales
        x, of = grad_output.astype(opmath(grad_output.dtype)), backward_method or method
        taps = _taps(*[of, sizes, output_size, *options(output_size, rest), x.dtype])
        for i, (tap, size) in enumerate(zip(taps, sizes, strict=True)):
            x = tap.transpose(size).apply(x, x.ndim - len(taps) + i)
        return x

    # PyTorch's meta functions of nearest neighbours fail where there is nothing.
    meta = aligned or (lambda self: 0 not in self.shape)
    op(name, static=_SCALES, meta=meta)(forward)
    op(f"{name}_backward", static=_SCALES)(backward)


for _n in (1, 2, 3):
    _forward = _nearest_by_size if _n == 2 else _nearest
    _register(f"upsample_nearest{_n}d", _forward, False, backward_method=_nearest_by_size)
    _register(f"_upsample_nearest_exact{_n}d", _nearest_exact, aligned=False)
for _name in ("linear1d", "bilinear2d", "trilinear3d"):
    _register(f"upsample_{_name}", _linear, aligned=True)
_register("upsample_bicubic2d", _cubic, aligned=True)
for _name, _method in _ANTIALIASED.items():
    _register(f"_upsample_{_name}2d_aa", _method, aligned=True)


@op("pixel_shuffle", channels_last=("self",))
def pixel_shuffle(self, upscale_factor):
    """Return (..., C r², H, W) as (..., C, H r, W r)."""
    *batch, channels, height, width = self.shape
    r, n = upscale_factor, len(batch)
    x = self.reshape(*batch, channels // r**2, r, r, height, width)
    x = x.transpose(*range(n + 1), n + 3, n + 1, n + 4, n + 2)
    return x.reshape(*batch, channels // r**2, height * r, width * r)


@op("pixel_unshuffle", channels_last=("self",))
def pixel_unshuffle(self, downscale_factor):
    """Return (..., C, H r, W r) as (..., C r², H, W)."""
    *batch, channels, height, width = self.shape
    r, n = downscale_factor, len(batch)
    x = self.reshape(*batch, channels, height // r, r, width // r, r)
    x = x.transpose(*range(n + 1), n + 2, n + 4, n + 1, n + 3)
    return x.reshape(*batch, channels * r**2, height // r, width // r)
