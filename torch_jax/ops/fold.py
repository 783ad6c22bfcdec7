"""Sliding windows as columns, and back."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import InOrder, op


@op("im2col")
def im2col(self, kernel_size, dilation, padding, stride):
    """Return every window of (..., C, H, W) as a column: (..., C * kernel, L)."""
    *batch, channels, height, width = self.shape
    edges = [(0, 0, 0)] * (self.ndim - 2) + [(p, p, 0) for p in padding]
    x = lax.pad(self, jnp.zeros((), self.dtype), edges)
    count = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(
            (height, width), padding, dilation, kernel_size, stride, strict=True
        )
    ]
    columns = []
    for offset in itertools.product(*map(range, kernel_size)):
        part = x
        for i, o in enumerate(offset):
            start = o * dilation[i]
            stop = start + (count[i] - 1) * stride[i] + 1
            part = lax.slice_in_dim(part, start, stop, stride[i], self.ndim - 2 + i)
        columns.append(part)
    stacked = jnp.stack(columns, axis=self.ndim - 2)
    result = stacked.reshape(*batch, channels * len(columns), count[0] * count[1])
    return InOrder(result, tuple(range(result.ndim)))


@op("col2im")
def col2im(self, output_size, kernel_size, dilation, padding, stride):
    """Return the transpose of ``im2col``: overlapping values add up."""
    channels = self.shape[-2] // (kernel_size[0] * kernel_size[1])
    self = self.astype(opmath(self.dtype))
    image = jax.ShapeDtypeStruct((*self.shape[:-2], channels, *output_size), self.dtype)
    geometry = kernel_size, dilation, padding, stride
    return jax.linear_transpose(lambda x: im2col(x, *geometry).value, image)(self)[0]
