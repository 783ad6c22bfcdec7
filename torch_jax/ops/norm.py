"""Batch, layer, group and weight normalization, and their gradients.

Everything is computed in float32 for half types; outputs are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops.promotion import HALVES, opmath
from torch_jax.ops.registry import op

STATS = ("running_mean", "running_var")


def _wide(*arrays):
    """Return the arrays in the dtype of the computation, by the first; None stays None."""
    dtype = opmath(arrays[0].dtype)
    return [None if x is None else x.astype(dtype) for x in arrays]


def _moments(x: jax.Array, axes: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance, the reduced axes kept; two passes, so nothing cancels."""
    mean = x.mean(axes, keepdims=True)
    return mean, jnp.square(x - mean).mean(axes, keepdims=True)


def _statistics_dtype(input: jax.Array, *parameters: jax.Array | None) -> Any:
    """Return the dtype of the CPU's moments, also by a half type's float32 parameters."""
    dtypes = {p.dtype for p in parameters if p is not None} or {input.dtype}
    float32 = {np.dtype(np.float32)} if input.dtype in HALVES else None
    if dtypes not in ({input.dtype}, float32):
        raise ValueError(f"parameters of {dtypes} do not go with an input of {input.dtype}")
    return dtypes.pop()


def _saved_mean(mean: jax.Array, x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """Return the mean of the forward pass, or a better one if it was rounded to a half type."""
    if mean.dtype not in HALVES:
        return mean.astype(x.dtype)
    return x.mean(axes, keepdims=True).reshape(mean.shape)


def _affine(x, weight, bias):
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _standardized_grad(grad, x_hat, rstd, axes):
    """Return the gradient by x of ``x_hat = (x - mean) * rstd`` over ``axes``."""
    along = (grad * x_hat).mean(axes, keepdims=True)
    return rstd * (grad - grad.mean(axes, keepdims=True) - x_hat * along)


def _wanted(grads: Sequence[Any], output_mask: Sequence[bool], *of: Any) -> tuple:
    """Return gradients that are asked for, of operands that there are; else None."""
    each = zip(grads, output_mask, of, strict=True)
    return tuple(grad if asked and x is not None else None for grad, asked, x in each)


# ---- layer norm -------------------------------------------------------------------------------


def _refuse_shapes(input, normalized_shape, *parameters) -> None:
    inner = input.shape[input.ndim - len(normalized_shape) :]
    shapes = {tuple(normalized_shape), *(p.shape for p in parameters if p is not None)}
    if not normalized_shape or shapes != {inner}:
        raise ValueError(f"input, weight and bias do not end in {normalized_shape}")


# PyTorch's meta function saves moments as CUDA does, in float32.
@op("native_layer_norm", meta=False)
def native_layer_norm(input, normalized_shape, weight, bias, eps):
    """Standardize over the last dimensions; return mean and reciprocal deviation, too."""
    _refuse_shapes(input, normalized_shape, weight, bias)
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    saved = _statistics_dtype(input, weight, bias)
    x, weight, bias = _wide(input, weight, bias)
    mean, var = _moments(x, axes)
    rstd = lax.rsqrt(var + eps)
    out = _affine((x - mean) * rstd, weight, bias)
    return out.astype(input.dtype), mean.astype(saved), rstd.astype(saved)


@op("native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask
):
    """Return gradients of input, weight and bias."""
    split = input.ndim - len(normalized_shape)
    inner = tuple(range(split, input.ndim))
    x, grad, rstd, weight_wide = _wide(input, grad_out, rstd, weight)
    x_hat = (x - _saved_mean(mean, x, inner)) * rstd
    grad_input = _standardized_grad(_affine(grad, weight_wide, None), x_hat, rstd, inner)
    outer = tuple(range(split))
    grads = grad_input, (grad * x_hat).sum(outer), grad.sum(outer)
    return _wanted(grads, output_mask, input, weight, bias)


# ---- batch norm -------------------------------------------------------------------------------


def _channels(x: jax.Array | None, ndim: int) -> Any:
    """Return a vector of one value per channel, shaped to broadcast over (batch, channel, ...)."""
    return None if x is None else x.reshape(1, x.size, *[1] * (ndim - 2))


def _others(ndim: int, dim: int = 1) -> tuple[int, ...]:
    return tuple(d for d in range(ndim) if d != dim % ndim)


def _channels_last(x: jax.Array) -> jax.Array:
    """Move channels to the end: XLA's CPU backend sums over other dimensions faster there.

    Its convolutions want them there too, and between two of these all transposes cancel.
    """
    return jnp.moveaxis(x, 1, -1)


def _sums(x: jax.Array) -> jax.Array:
    """Return sums of ``[batch, ..., channels]`` over all dimensions but the last."""
    return x.sum(tuple(range(x.ndim - 1)))


def _channel_moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance of each channel, as of ``_moments``, both vectors."""
    x = _channels_last(x)
    count = math.prod(x.shape[:-1])
    mean = _sums(x) / count
    return mean, _sums(jnp.square(x - mean)) / count


def _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    """Return output, mean, reciprocal deviation, and new running statistics (None: unchanged)."""
    n, axes = input.ndim, _others(input.ndim)
    saved = _statistics_dtype(input, weight, bias, running_mean, running_var)
    x, weight, bias, old_mean, old_var = _wide(input, weight, bias, running_mean, running_var)
    new_mean = new_var = None
    if training:
        mean, var = _channel_moments(x)
        count = math.prod(input.shape[a] for a in axes)
        unbiased = var * (count / (count - 1) if count > 1 else math.inf)
        if old_mean is not None:
            momentum = jnp.asarray(momentum, old_mean.dtype)  # chips have no units for float64
            new_mean = (1 - momentum) * old_mean + momentum * mean
        if old_var is not None:
            new_var = (1 - momentum) * old_var + momentum * unbiased
    else:
        mean, var = old_mean, old_var
    mean, var = _channels(mean, n), _channels(var, n)
    rstd = lax.rsqrt(var + eps)
    # one factor and one term a channel, as on the CPU: compilers repeat this where it is used
    factor = rstd if weight is None else rstd * _channels(weight, n)
    out = x * factor + (_affine(-mean * factor, None, _channels(bias, n)))
    out = out.astype(input.dtype)
    moments = [m.reshape(-1)[: None if training else 0].astype(saved) for m in (mean, rstd)]
    return out, *moments, new_mean, new_var


# PyTorch's meta functions save moments where the CPU saves none, and as float32, as CUDA does.
_OPTIONS: dict[str, Any] = {"meta": False, "channels_last": ("input",)}

# The schema does not say that the first of these writes its running statistics.
op("native_batch_norm", writes=STATS, **_OPTIONS)(_batch_norm)
op("_native_batch_norm_legit", **_OPTIONS)(_batch_norm)


@op("_native_batch_norm_legit.no_stats", **_OPTIONS)
def _without_statistics(input, weight, bias, training, *numbers):
    """Run batch norm by the batch's own statistics, which are not stored."""
    return _batch_norm(*[input, weight, bias, None, None, True, *numbers])[:3]


def _enter(name: str, training: bool | None = None, reserve: bool = False) -> None:
    """Enter a form of batch norm: in training, by running statistics, or as an argument says.

    A functional one returns its running statistics, new or old. The reserve is the fourth output,
    cuDNN's, and is empty.
    """

    @op(name, **_OPTIONS)
    def form(input, *args):
        given = args if training is None else (*args[:4], training, *args[4:])
        *results, mean, var = _batch_norm(*[input, *given])
        results += [jnp.zeros(0, jnp.uint8)] * reserve
        if training is False:
            return results
        if name.endswith("functional"):
            pairs = zip(args[2:4], (mean, var), strict=True)
            mean, var = (old if new is None else new.astype(old.dtype) for old, new in pairs)
        return *results, mean, var


_enter("_native_batch_norm_legit_functional")
_enter("_native_batch_norm_legit_no_training", training=False)
_enter("_batch_norm_with_update", training=True, reserve=True)
_enter("_batch_norm_with_update_functional", training=True, reserve=True)
_enter("_batch_norm_no_update", training=False, reserve=True)


@op("native_batch_norm_backward", "batch_norm_backward")
def native_batch_norm_backward(
    grad_out,
    input,
    weight,
    running_mean,
    running_var,
    save_mean,
    save_invstd,
    train,
    eps,
    output_mask,
    reserve=None,
):
    """Return gradients of input, weight and bias."""
    x, grad, weight, mean, rstd = _wide(input, grad_out, weight, save_mean, save_invstd)
    if not train:
        mean, var = _wide(input, running_mean, running_var)[1:]
        rstd = lax.rsqrt(var + eps)
    elif save_mean.dtype in HALVES:  # rounded: better ones are at hand
        mean, var = _channel_moments(x)
        rstd = lax.rsqrt(var + eps)
    x, grad = _channels_last(x) - mean, _channels_last(grad)
    grad_weight, grad_bias = _sums(grad * x) * rstd, _sums(grad)
    factor = rstd if weight is None else rstd * weight
    grad = grad * factor
    if train:
        share = factor / math.prod(grad.shape[:-1])
        grad = grad - x * (grad_weight * rstd * share) - grad_bias * share
    grads = jnp.moveaxis(grad, -1, 1), grad_weight, grad_bias
    return _wanted(grads, output_mask, x, x, x)


# ---- the parts of batch norm between the exchanges of nn.SyncBatchNorm --------------------------
#
# PyTorch has kernels of them on accelerators only.


@op("batch_norm_stats", meta=False)
def batch_norm_stats(input, eps):
    """Return the mean of each channel, and its reciprocal deviation."""
    mean, variance = _channel_moments(*_wide(input))
    return mean, lax.rsqrt(variance + eps)


@op("batch_norm_gather_stats_with_counts", writes=STATS, meta=False)
def batch_norm_gather_stats_with_counts(
    input, mean, invstd, running_mean, running_var, momentum, eps, counts
):
    """Return the moments of all parts of a batch, a row each, as one; and new statistics."""
    mean, invstd = _wide(mean, invstd)
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
    x, *of_channels = _wide(input, weight, bias, mean, invstd)
    weight, bias, mean, invstd = (_channels(one, x.ndim) for one in of_channels)
    return _affine((x - mean) * invstd, weight, bias).astype(input.dtype)


@op("batch_norm_backward_reduce", static=("input_g", "weight_g", "bias_g"), meta=False)
def batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g):
    """Return sums of a gradient, and of its products with the centred input: empty if not asked."""
    x, grad, mean = _wide(input, grad_out, mean)
    sums = grad.sum(_others(x.ndim))
    products = (grad * (x - _channels(mean, x.ndim))).sum(_others(x.ndim))
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
    x, grad, *of_channels = _wide(input, grad_out, mean, invstd, weight, sum_dy, sum_dy_xmu)
    mean, invstd, weight, sums, products = (_channels(one, x.ndim) for one in of_channels)
    total = count.sum().astype(x.dtype)
    slope = grad - sums / total - (x - mean) * jnp.square(invstd) * products / total
    return _affine(slope * invstd, weight, None).astype(input.dtype)


# ---- group norm -------------------------------------------------------------------------------


@op("native_group_norm", **_OPTIONS)
def native_group_norm(input, weight, bias, N, C, HxW, group, eps):
    """Standardize groups of channels; mean and reciprocal deviation are (batch, group)."""
    saved = _statistics_dtype(input, weight, bias)
    x, weight, bias = _wide(input, weight, bias)
    x = x.reshape(N, group, C // group * HxW)
    mean, var = _moments(x, (2,))
    rstd = lax.rsqrt(var + eps)
    out = ((x - mean) * rstd).reshape(input.shape)
    out = _affine(out, _channels(weight, input.ndim), _channels(bias, input.ndim))
    return out.astype(input.dtype), mean[..., 0].astype(saved), rstd[..., 0].astype(saved)


# PyTorch's meta function divides by the size of a group.
@op("native_group_norm_backward", meta=lambda input: 0 not in input.shape)
def native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask):
    """Return gradients of input, weight and bias."""
    n, axes = input.ndim, _others(input.ndim)
    x, grad, rstd, weight = _wide(input, grad_out, rstd, weight)
    grouped = N, group, C // group * HxW
    rstd = rstd[..., None]
    x_hat = x.reshape(grouped)
    x_hat = (x_hat - _saved_mean(mean, x_hat, (2,))[..., None]) * rstd
    scaled = _affine(grad, _channels(weight, n), None).reshape(grouped)
    grad_input = _standardized_grad(scaled, x_hat, rstd, (2,)).reshape(input.shape)
    grads = grad_input, (grad * x_hat.reshape(input.shape)).sum(axes), grad.sum(axes)
    return _wanted(grads, output_mask, x, x, x)


# ---- RMS norm and weight norm -----------------------------------------------------------------


@op("_fused_rms_norm", meta=False)
def _fused_rms_norm(input, normalized_shape, weight, eps):
    """Divide by the root of the mean square over the last dimensions; return its inverse, too."""
    _refuse_shapes(input, normalized_shape, weight)
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    x, weight = _wide(input, weight)
    eps = jnp.finfo(x.dtype).eps if eps is None else eps
    rstd = lax.rsqrt(jnp.mean(jnp.square(x), axes, keepdims=True) + eps)
    return _affine(x * rstd, weight, None).astype(input.dtype), rstd


@op("_fused_rms_norm_backward")
def _fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask):
    """Return gradients of input and weight."""
    split = input.ndim - len(normalized_shape)
    inner = tuple(range(split, input.ndim))
    x, grad, rstd, weight = _wide(input, grad_out, rstd, weight)
    x_hat = x * rstd
    scaled = _affine(grad, weight, None)
    grad_input = rstd * (scaled - x_hat * (scaled * x_hat).mean(inner, keepdims=True))
    return _wanted((grad_input, (grad * x_hat).sum(tuple(range(split)))), output_mask, x, weight)


@op("_weight_norm_interface")
def _weight_norm_interface(v, g, dim=0):
    """Scale ``v`` to the norms ``g`` along ``dim``; return the former norms, too."""
    v, g = _wide(v, g)
    norms = jnp.sqrt(jnp.square(v).sum(_others(v.ndim, dim), keepdims=True))
    return v * (g / norms), norms


@op("_weight_norm_interface_backward")
def _weight_norm_interface_backward(grad_w, saved_v, saved_g, saved_norms, dim):
    """Return gradients of ``v`` and ``g``."""
    grad, v, g, norms = _wide(grad_w, saved_v, saved_g, saved_norms)
    along = (grad * v).sum(_others(v.ndim, dim), keepdims=True) / norms
    return (g / norms) * (grad - v * (along / norms)), along
