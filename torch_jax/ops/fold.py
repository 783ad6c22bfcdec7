"""Sliding windows as columns, and back."""

import math

import jax.numpy as jnp

from torch_jax.ops.conv_forms import padded, parts
from torch_jax.ops.derivatives import transposed
from torch_jax.ops.registry import InOrder, op


@op("im2col")
def im2col(self, kernel_size, dilation, padding, stride):
    """Return every window of (..., C, H, W) as a column: (..., C * kernel, L)."""
    *batch, channels, _, _ = self.shape
    first = self.ndim - 2
    x = padded(self, first, [(p, p) for p in padding])
    columns = [part for _, part in parts(x, first, kernel_size, stride, dilation)]
    count = math.prod(columns[0].shape[first:])
    result = jnp.stack(columns, first).reshape(*batch, channels * len(columns), count)
    return InOrder(result, tuple(range(result.ndim)))


@op("col2im")
def col2im(self, output_size, kernel_size, dilation, padding, stride):
    """Return the transpose of ``im2col``: overlapping values add up."""
    channels = self.shape[-2] // (kernel_size[0] * kernel_size[1])
    image, geometry = (*self.shape[:-2], channels, *output_size), (dilation, padding, stride)
    return transposed(lambda x: im2col(x, kernel_size, *geometry).value, self, image)
