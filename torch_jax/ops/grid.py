"""Sampling images and volumes at the points of a grid."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op
from torch_jax.ops.resample import keys

_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)


def _to_pixels(coordinate, size: int, align_corners: bool):
    """Map [-1, 1] to [0, size - 1], or to the pixels' outer edges."""
    if align_corners:
        return (coordinate + 1) / 2 * (size - 1)
    return ((coordinate + 1) * size - 1) / 2


def _reflect(x, size: int, align_corners: bool):
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span == 0:
        return jnp.zeros_like(x)
    x = jnp.abs(x - low)
    flips = jnp.floor(x / span)
    extra = x - lax.stop_gradient(flips) * span
    return jnp.where(flips % 2 == 0, extra, span - extra) + low


def _inside(x, size: int, padding_mode: int, align_corners: bool):
    """Return coordinates after the padding mode; with zeros they may lie outside."""
    if padding_mode == _REFLECTION:
        x = _reflect(x, size, align_corners)
    if padding_mode == _ZEROS:
        return x
    # the slope is 0 where a point has to be moved, and at the edge
    return jnp.where(x <= 0, 0, jnp.where(x >= size - 1, size - 1, x))


def _read(image: jax.Array, points: list[jax.Array]) -> jax.Array:
    """Return values (N, C, taps, ...) of the image at coordinates (N, taps, ...); 0 outside."""
    valid = jnp.ones(points[0].shape, bool)
    flat = jnp.zeros(points[0].shape, jnp.int32)
    for x, size in zip(points, image.shape[2:], strict=True):
        valid &= (x >= 0) & (x <= size - 1)
        flat = flat * size + jnp.clip(x, 0, size - 1).astype(jnp.int32)
    (batch, channels), count = image.shape[:2], math.prod(image.shape[2:])
    first = count * jnp.arange(batch, dtype=jnp.int32)
    index = jnp.where(valid, flat, 0) + first.reshape(-1, *[1] * (flat.ndim - 1))
    # a pixel's channels lie together, so that each is read, or added to, at once
    pixels = jnp.moveaxis(image.reshape(batch, channels, count), 1, 2)
    values = pixels.reshape(batch * count, channels).at[index].get(mode="promise_in_bounds")
    return jnp.where(valid[:, None], jnp.moveaxis(values, -1, 1), 0)


@op("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(image, grid, mode, padding_mode, align_corners):
    """Interpolate linear (0), nearest (1) or cubic (2), beyond the edge by ``padding_mode``."""
    sizes = image.shape[2:]
    n = len(sizes)
    image, grid = (x.astype(opmath(x.dtype)) for x in (image, grid))

    def inside(points):
        each = zip(points, sizes, strict=True)
        return [_inside(x, size, padding_mode, align_corners) for x, size in each]

    # a grid names the last dimension first; after the batch comes an axis of taps
    each = enumerate(sizes)
    pixels = [_to_pixels(grid[:, None, ..., n - 1 - i], s, align_corners) for i, s in each]
    if mode != _BICUBIC:
        pixels = inside(pixels)
    if mode == _NEAREST:
        return _read(image, [jnp.round(x) for x in pixels])[:, :, 0]
    taps = np.indices((4 if mode == _BICUBIC else 2,) * n).reshape(n, -1)
    points: list[jax.Array] = []
    weight: Any = 1
    for x, tap in zip(pixels, taps, strict=True):
        tap = tap.reshape(-1, *[1] * n)
        # else points and weights may round it to numbers on both sides of a pixel
        low = lax.optimization_barrier(lax.stop_gradient(jnp.floor(x)))
        if mode == _BICUBIC:
            points.append(low + (tap - 1))
            weight = weight * keys(x - points[-1])
        else:
            points.append(low + tap)
            weight = weight * jnp.where(tap == 0, low + 1 - x, x - low)
    if mode == _BICUBIC:
        points = inside(points)
    return (_read(image, points) * weight[:, None]).sum(2)


@op("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(grad_output, input, grid, *options_and_mask):
    """Return gradients of input and grid."""
    *options, output_mask = options_and_mask
    dtype = opmath(input.dtype)
    args = input.astype(dtype), grid.astype(dtype)
    _, transpose = jax.vjp(lambda image, grid: grid_sampler(image, grid, *options), *args)
    grads = transpose(grad_output.astype(dtype))
    return grads[0] if output_mask[0] else None, grads[1]
