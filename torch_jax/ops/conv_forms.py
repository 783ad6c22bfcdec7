"""The forms of a convolution on CPUs: XLA's own, or products of matrices.

One rule for each of the three products (forward, input gradient, weight gradient), by shape; its
evidence was taken with jaxlib 0.10.2 on a core of AVX2 at float32, in milliseconds (channels of
512 -> 512, window 3x3, padded by 1; XLA's convolution / the form here / PyTorch's oneDNN):

==========================  ===================  ===================  ===================
map and batch               forward              input gradient       weight gradient
==========================  ===================  ===================  ===================
1x1, batch 16               15.9 / 6.9 / 5.5     13.7 / 2.0 / 5.1      3.6 / 1.6 / 29
2x2, batch 8                 196 / 8.3 / 4.4      197 / 3.3 / 5.1      4.3 / 2.8 / 6.0
2x2, batch 32                764 / 15.9 / 13.4    767 / 10.4 / 11.5    9.7 / 9.7 / 18.6
4x4, batch 4                 8.7 / 8.7 / 6.1      9.1 / 5.6 / 7.9      7.7 / 5.7 / 10.2
7x7, batch 1                 7.2 / 7.2 / 4.6      6.9 / 4.3 / 4.8      8.0 / 4.2 / 6.2
7x7, batch 8                31.4 / 31.4 / 23.7   31.3 / 29.1 / 22.5   32.2 / 32.2 / 33.0
==========================  ===================  ===================  ===================

- XLA hands a convolution to Eigen only where the map that it reads has as many elements as the
  window, and writes loops for the others, which are up to 80 times slower: :func:`is_looped`.
- Its gradients turn the whole kernel around in memory, and that takes longer than the products
  where these have few rows: :func:`is_few`. An unturned kernel is a matrix of (out, in * window).
- Windows that meet each element once (patch embeddings) are a product of the map, cut in tiles.
- The weight gradient of a kernel per channel is a sum for each element of the window: 3x3 takes
  1.3 ms in place of 3.3 (64 channels, 28x28, batch 8), and 3x3x3 2.6 in place of 490.

Elsewhere XLA's form is as good or better: 32 -> 32 on 32x32, batch 32, takes 8.4 / 8.4 / 11.5 ms,
and patches with a product 22 / 12 / 28; transposed convolutions too. A kernel of 1x1 is a product
in either. The forms take longer to compile: 0.2 to 0.6 s in place of 0.1 to 0.3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax.budgets import ELEMENTS_OF_A_CONVOLUTION, ELEMENTS_OF_A_WEIGHT_GRADIENT
from torch_jax.ops.derivatives import transposed
from torch_jax.ops.precision import precision
from torch_jax.ops.promotion import opmath


def full(values: Sequence[int], n: int) -> tuple[int, ...]:
    """Return one value per spatial dimension; a single one is repeated for all."""
    return tuple(values) * n if len(values) == 1 else tuple(values)


def is_small(window: Sequence[int]) -> bool:
    """Return whether a window may be written out element by element."""
    return math.prod(window) <= ELEMENTS_OF_A_CONVOLUTION


def is_looped(size: Sequence[int], window: Sequence[int]) -> bool:
    """Return whether XLA computes the convolution of a map of this size by loops."""
    return math.prod(size) < math.prod(window)


def is_few(output: jax.Array) -> bool:
    """Return whether ``output``, channels second, has no more rows than channels."""
    return math.prod(output.shape) <= output.shape[1] ** 2


def forward_by_patches(input: jax.Array, weight: jax.Array, groups: int) -> bool:
    """Return whether :func:`patches_forward` is the form of a convolution."""
    window = weight.shape[2:]
    of_window = groups == 1 and is_plain(input) and is_small(window)
    return of_window and is_looped(input.shape[2:], window)


def input_by_patches(output: jax.Array, size, weight: jax.Array, geometry) -> bool:
    """Return whether :func:`patches_to_input` is the form of an input gradient."""
    window, groups = weight.shape[2:], geometry[3]
    if groups != 1 or not is_plain(output):
        return False
    slow = is_looped(output.shape[2:], window) or is_few(output)
    return is_tiled(size, window, geometry) or (is_small(window) and slow)


def weight_form(output: jax.Array, input: jax.Array, shape: Sequence[int], geometry) -> Any:
    """Return the function that computes a weight gradient; None where XLA's form is best."""
    window, groups = tuple(shape[2:]), geometry[3]
    if groups == input.shape[1] > 1:
        is_short = math.prod(window) <= ELEMENTS_OF_A_WEIGHT_GRADIENT
        return sums_to_weight if is_short and is_plain(output) else None
    if groups != 1 or not is_plain(output):
        return None
    slow = is_few(output) or is_looped(input.shape[2:], output.shape[2:])
    is_form = is_small(window) and (slow or math.prod(window) == 1)
    is_form = is_form or is_tiled(input.shape[2:], window, geometry)
    return patches_to_weight if is_form else None


def is_plain(x: jax.Array) -> bool:
    """Return whether an array is of no half type or integers, and no dim is empty or a symbol."""
    is_wide = jnp.issubdtype(x.dtype, jnp.inexact) and x.dtype == opmath(x.dtype)
    return is_wide and all(isinstance(n, int) and n > 0 for n in x.shape)


def is_tiled(size: Sequence[int], window: Sequence[int], geometry) -> bool:
    """Return whether windows meet each element once, as those of a patch embedding."""
    stride, edges, dilation, _ = geometry
    is_dense = tuple(stride) == tuple(window) and max(dilation) == 1 and not any(map(any, edges))
    return is_dense and all(n % k == 0 for n, k in zip(size, window, strict=True))


def padded(x: jax.Array, first: int, edges, spread=None) -> jax.Array:
    """Put zeros around dimensions from ``first`` on, and between elements if these are spread."""
    widths = [(0, 0, 0)] * x.ndim
    for i, (low, high) in enumerate(edges):
        widths[first + i] = (low, high, spread[i] - 1 if spread else 0)
    return lax.pad(x, jnp.zeros((), x.dtype), widths)


def parts(x: jax.Array, first: int, window, stride, dilation) -> Iterator[tuple]:
    """Yield each element of a window and the part of a padded input that it meets.

    ``first`` is the first spatial dimension of ``x``.
    """
    size = x.shape[first : first + len(window)]
    for taps in itertools.product(*map(range, window)):
        each = zip(size, window, taps, stride, dilation, strict=True)
        slices = [slice(t * d, n - (k - 1 - t) * d, s) for n, k, t, s, d in each]
        yield taps, x[*[slice(None)] * first, *slices]


def _patches(input: jax.Array, window, geometry) -> jax.Array:
    """Return the input at each place of the window, ``[batch, ..., in, window]``, as a kernel."""
    stride, edges, dilation, _ = geometry
    if is_tiled(input.shape[2:], window, geometry):
        n = len(window)
        each = zip(input.shape[2:], window, strict=True)
        sizes = itertools.chain.from_iterable((size // k, k) for size, k in each)
        tiles = input.reshape(*input.shape[:2], *sizes)
        tiles = tiles.transpose(0, *range(2, 2 + 2 * n, 2), 1, *range(3, 3 + 2 * n, 2))
        return tiles.reshape(*tiles.shape[: n + 2], -1)
    x = padded(jnp.moveaxis(input, 1, -1), 1, edges)
    return jnp.stack([part for _, part in parts(x, 1, window, stride, dilation)], -1)


def patches_forward(input: jax.Array, weight: jax.Array, geometry) -> jax.Array:
    """Return a convolution as one product of the input at each place of the window."""
    patches = _patches(input, weight.shape[2:], geometry)
    *lead, inputs, elements = patches.shape
    patches = patches.reshape(-1, inputs * elements)
    exact, numbers = precision(patches.dtype, "conv"), (((1,), (1,)), ((), ()))
    out = lax.dot_general(patches, weight.reshape(len(weight), -1), numbers, precision=exact)
    return jnp.moveaxis(out.reshape(*lead, len(weight)), -1, 1)


def patches_to_input(output: jax.Array, size, weight: jax.Array, geometry) -> jax.Array:
    """Return an input gradient as one product, whose parts are added in place."""
    shape = output.shape[0], weight.shape[1], *size
    return transposed(lambda input: patches_forward(input, weight, geometry), output, shape)


def patches_to_weight(output: jax.Array, input: jax.Array, shape, geometry) -> jax.Array:
    """Return a weight gradient as one product, in the weight's own order."""
    return transposed(lambda weight: patches_forward(input, weight, geometry), output, shape)


def sums_to_weight(output: jax.Array, input: jax.Array, shape, geometry) -> jax.Array:
    """Return the weight gradient of a kernel per channel, a sum for each element of the window."""
    stride, edges, dilation, groups = geometry
    x = jnp.repeat(padded(input, 2, edges), shape[0] // groups, axis=1)
    axes = (0, *range(2, x.ndim))
    each = parts(x, 2, shape[2:], stride, dilation)
    return jnp.stack([jnp.sum(output * part, axes) for _, part in each], -1).reshape(shape)
