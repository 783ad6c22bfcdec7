"""Fourier transforms. ``normalization`` divides by 0: nothing, 1: the root of n, 2: n."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops.registry import op

_AT_ONCE = 3  # XLA transforms up to three dimensions at a time


def _scaled(x: jax.Array, sizes: Sequence[int], normalization: int) -> jax.Array:
    if normalization == 0:
        return x
    n = math.prod(sizes)
    return x * np.asarray(1 / (math.sqrt(n) if normalization == 1 else n), x.real.dtype)


def _along(x: jax.Array, dims: Sequence[int], kind: lax.FftType, last: int = 0) -> jax.Array:
    """One XLA transform without scaling over ``dims``; ``last`` is the last one's full size."""
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


@op("_fft_c2c")
def fft_c2c(self, dim, normalization, forward):
    if self.size == 0:
        return self
    return _scaled(_complex(self, dim, forward), [self.shape[d] for d in dim], normalization)


@op("_fft_r2c")
def fft_r2c(self, dim, normalization, onesided):
    """The last of ``dim`` is the one of which half is kept."""
    sizes = [self.shape[d] for d in dim]
    if not onesided:
        return fft_c2c(lax.complex(self, jnp.zeros_like(self)), dim, normalization, True)
    if self.size == 0:
        half = self.shape[dim[-1]] // 2 + 1
        shape = list(self.shape)
        shape[dim[-1]] = half
        return jnp.zeros(shape, np.result_type(self.dtype, np.complex64))
    x = _along(self, dim[-1:], lax.FftType.RFFT)
    return _scaled(_complex(x, dim[:-1], True), sizes, normalization)


@op("_fft_c2r")
def fft_c2r(self, dim, normalization, last_dim_size):
    """The imaginary parts that a real signal cannot have are passed over."""
    sizes = [*(self.shape[d] for d in dim[:-1]), last_dim_size]
    if self.size == 0:
        shape = list(self.shape)
        shape[dim[-1]] = last_dim_size
        return jnp.zeros(shape, self.real.dtype)
    x = _complex(self, dim[:-1], False)
    x = _along(x, dim[-1:], lax.FftType.IRFFT, last_dim_size)
    return _scaled(x, sizes, normalization)
