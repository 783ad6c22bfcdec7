"""The parts of batch norm between the exchanges of ``nn.SyncBatchNorm`` with other processes.

PyTorch has kernels of them on accelerators only: they are the parts of ``batch_norm``, moments and
sums in float32 for half types.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax.ops.norm import STATS, all_but_channel
from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op


def _by_channel(value: jax.Array | None, x: jax.Array, otherwise: float) -> jax.Array:
    """Return a number of each channel, in the dtype of the computation, shaped to fit ``x``."""
    if value is None:
        return jnp.asarray(otherwise, opmath(x.dtype))
    return value.astype(opmath(x.dtype)).reshape(1, -1, *[1] * (x.ndim - 2))


@op("batch_norm_stats", meta=False)
def batch_norm_stats(input, eps):
    """Return the mean of each channel, and its reciprocal deviation."""
    x = input.astype(opmath(input.dtype))
    mean = x.mean(all_but_channel(x.ndim), keepdims=True)
    variance = jnp.square(x - mean).mean(all_but_channel(x.ndim))
    return mean.reshape(-1), lax.rsqrt(variance + eps)


@op("batch_norm_gather_stats_with_counts", writes=STATS, meta=False)
def batch_norm_gather_stats_with_counts(
    input, mean, invstd, running_mean, running_var, momentum, eps, counts
):
    """Return the moments of all parts of a batch, a row each, as one; and new statistics."""
    mean, invstd = mean.astype(opmath(mean.dtype)), invstd.astype(opmath(invstd.dtype))
    count = counts.astype(mean.dtype).reshape(-1, 1)
    total = count.sum()
    whole = (mean * count).sum(0) / total
    variances = 1 / jnp.square(invstd) - eps
    squares = ((variances + jnp.square(mean - whole)) * count).sum(0)
    news = []
    for old, new in ((running_mean, whole), (running_var, squares / (total - 1))):
        moved = None if old is None else (1 - momentum) * old.astype(new.dtype) + momentum * new
        news.append(moved)
    return whole, lax.rsqrt(squares / total + eps), *news


@op("batch_norm_gather_stats", writes=STATS, meta=False)
def batch_norm_gather_stats(input, mean, invstd, running_mean, running_var, momentum, eps, count):
    """Do the same for parts of one size."""
    counts = jnp.full(mean.shape[0], count, opmath(mean.dtype))
    return batch_norm_gather_stats_with_counts(
        input, mean, invstd, running_mean, running_var, momentum, eps, counts
    )


@op("batch_norm_elemt", meta=False)
def batch_norm_elemt(input, weight, bias, mean, invstd, eps):
    """Normalize by given moments."""
    x = input.astype(opmath(input.dtype))
    mean, invstd = _by_channel(mean, x, 0), _by_channel(invstd, x, 1)
    scaled = (x - mean) * invstd * _by_channel(weight, x, 1) + _by_channel(bias, x, 0)
    return scaled.astype(input.dtype)


@op("batch_norm_backward_reduce", static=("input_g", "weight_g", "bias_g"), meta=False)
def batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g):
    """Return the sums of a gradient, and of its product with the centred input; outputs not asked
    for are empty.
    """
    x, grad = (value.astype(opmath(input.dtype)) for value in (input, grad_out))
    sums = grad.sum(all_but_channel(x.ndim))
    products = (grad * (x - _by_channel(mean, x, 0))).sum(all_but_channel(x.ndim))
    none = jnp.zeros(0, sums.dtype)
    kind = sums.dtype if weight is None else weight.dtype
    return (
        sums if input_g else none,
        products if input_g else none,
        (products * invstd.astype(sums.dtype)).astype(kind) if weight_g else none,
        sums.astype(kind) if bias_g else none,
    )


@op("batch_norm_backward_elemt", meta=False)
def batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    """Return the gradient of the input, by the sums over all parts and their counts."""
    x, grad = (value.astype(opmath(input.dtype)) for value in (input, grad_out))
    total = count.sum().astype(x.dtype)
    mean, invstd = _by_channel(mean, x, 0), _by_channel(invstd, x, 1)
    average = _by_channel(sum_dy, x, 0) / total
    product = _by_channel(sum_dy_xmu, x, 0) / total
    slope = grad - average - (x - mean) * jnp.square(invstd) * product
    return (slope * invstd * _by_channel(weight, x, 1)).astype(input.dtype)
