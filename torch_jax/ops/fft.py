"""Fourier transforms. ``normalization`` divides by 0: nothing, 1: the root of n, 2: n."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops.registry import InOrder, op

_AT_ONCE = 3  # XLA transforms up to three dimensions at a time


def _scaled(x: jax.Array, sizes: Sequence[int], normalization: int) -> jax.Array:
    if normalization == 0:
        return x
    n = math.prod(sizes)
    return x * np.asarray(1 / (math.sqrt(n) if normalization == 1 else n), x.real.dtype)


def _along(x: jax.Array, dims: Sequence[int], kind: lax.FftType, last: int = 0) -> jax.Array:
    """Run one XLA transform without scaling over ``dims``; ``last`` is the last one's full size."""
    ndim = x.ndim
    dims = [d % ndim for d in dims]
    back = range(ndim - len(dims), ndim)
    x = jnp.moveaxis(x, dims, back)
    lengths = x.shape[ndim - len(dims) :]
    if last:
        lengths = (*lengths[:-1], last)
    inverse = kind in (lax.FftType.IFFT, lax.FftType.IRFFT)
    y = lax.fft(x, kind, lengths)
    if inverse:  # XLA divides by n
        y = y * np.asarray(math.prod(lengths), y.real.dtype)
    return jnp.moveaxis(y, back, dims)


def _complex(x: jax.Array, dims: Sequence[int], forward: bool) -> jax.Array:
    kind = lax.FftType.FFT if forward else lax.FftType.IFFT
    for i in range(0, len(dims), _AT_ONCE):
        x = _along(x, dims[i : i + _AT_ONCE], kind)
    return x


def _order(strides: Sequence[int], dims: Sequence[int], last: Sequence[int] = ()) -> list[int]:
    """Return the dimensions in the memory order of the CPU's results.

    Those that are not transformed come first, then ``dims``, then ``last``, both by their strides
    in the input.
    """

    def outermost_first(group: Iterable[int]) -> list[int]:
        return sorted(group, key=lambda d: -strides[d])

    ndim = len(strides)
    dims, last = [d % ndim for d in dims], [d % ndim for d in last]
    others = set(range(ndim)) - {*dims, *last}
    return [*outermost_first(others), *outermost_first(dims), *last]


@op("_fft_c2c", strided=("self",))
def fft_c2c(self, dim, normalization, forward, *, self_strides):
    if self.size == 0 or not dim:
        return self
    x = _complex(self, dim, forward)
    x = _scaled(x, [self.shape[d] for d in dim], normalization)
    return InOrder(x, tuple(_order(self_strides, dim)))


@op("_fft_r2c", strided=("self",))
def fft_r2c(self, dim, normalization, onesided, *, self_strides):
    """Keep half of the last of ``dim``."""
    sizes = [self.shape[d] for d in dim]
    order = tuple(_order(self_strides, dim[:-1], dim[-1:]))
    if self.size == 0:
        shape = list(self.shape)
        if onesided:
            shape[dim[-1]] = shape[dim[-1]] // 2 + 1
        return jnp.zeros(shape, np.result_type(self.dtype, np.complex64))
    if onesided:
        x = _complex(_along(self, dim[-1:], lax.FftType.RFFT), dim[:-1], True)
    else:
        x = _complex(lax.complex(self, jnp.zeros_like(self)), dim, True)
    return InOrder(_scaled(x, sizes, normalization), order)


@op("_fft_c2r", strided=("self",))
def fft_c2r(self, dim, normalization, last_dim_size, *, self_strides):
    """Ignore the imaginary parts that a real signal cannot have."""
    sizes = [*(self.shape[d] for d in dim[:-1]), last_dim_size]
    if self.size == 0:
        shape = list(self.shape)
        shape[dim[-1]] = last_dim_size
        return jnp.zeros(shape, self.real.dtype)
    x = _complex(self, dim[:-1], False)
    x = _along(x, dim[-1:], lax.FftType.IRFFT, last_dim_size)
    strides = self_strides
    if len(dim) > 1:  # the CPU's intermediate result
        rank = {d: i for i, d in enumerate(_order(self_strides, dim[:-1]))}
        strides = [-rank[d] for d in range(self.ndim)]
    return InOrder(_scaled(x, sizes, normalization), tuple(_order(strides, dim[-1:])))
