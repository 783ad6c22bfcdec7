"""Fake quantization: numbers rounded to those that a scale and few integers can say.

The formulas are those of PyTorch's CPU kernels, which take scales in float32.
https://docs.pytorch.org/docs/stable/generated/torch.fake_quantize_per_tensor_affine.html
"""

from __future__ import annotations

import jax.numpy as jnp

from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op


def _steps(x, scale, zero_point, low, high):
    """Return how many scales each element is rounded to, and whether it was within the bounds."""
    places = x.astype(opmath(x.dtype)) * (1 / scale)
    if jnp.issubdtype(jnp.result_type(zero_point), jnp.floating):
        places = jnp.round(places + zero_point)
    else:
        places = jnp.round(places) + zero_point
    kept = jnp.fmin(jnp.fmax(places, low), high)
    return (kept - zero_point).astype(jnp.float32), (low <= places) & (places <= high)


def _whole(zero_point, low, high):
    return jnp.clip(jnp.round(zero_point), low, high).astype(jnp.int32)


def _along(axis: int, x, *numbers):
    """Return one number a channel as arrays that broadcast against ``x``."""
    shape = [-1 if dim == axis % x.ndim else 1 for dim in range(x.ndim)]
    return [one.reshape(shape) for one in numbers]


@op("fake_quantize_per_tensor_affine_cachemask", meta=False, integers=("zero_point",))
def per_tensor(self, scale, zero_point, quant_min, quant_max):
    """Round to a grid; the mask says which elements were within its bounds, and have gradients."""
    scale = jnp.asarray(scale, jnp.float32)
    steps, mask = _steps(self, scale, zero_point, quant_min, quant_max)
    return (steps * scale).astype(self.dtype), mask


@op("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", meta=False)
def per_tensor_by_tensors(self, scale, zero_point, fake_quant_enabled, quant_min, quant_max):
    """Round to a grid of one scale, where it is enabled."""
    rounded, mask = per_tensor(self, scale.ravel()[0], zero_point.ravel()[0], quant_min, quant_max)
    enabled = fake_quant_enabled.ravel()[0] != 0
    return jnp.where(enabled, rounded, self), mask | ~enabled


@op("fake_quantize_per_channel_affine_cachemask", meta=False)
def per_channel(self, scale, zero_point, axis, quant_min, quant_max):
    """Round to a grid of one scale a channel."""
    scale, zero_point = _along(axis, self, scale, zero_point)
    return per_tensor(self, scale, zero_point, quant_min, quant_max)


@op("_fake_quantize_learnable_per_tensor_affine", meta=False)
def learnable(self, scale, zero_point, quant_min, quant_max, grad_factor=1.0):
    """Round to a grid of one scale, which is learned."""
    point = jnp.trunc(jnp.clip(zero_point[0] + 0.5, quant_min, quant_max))
    return per_tensor(self, scale[0], point.astype(jnp.int32), quant_min, quant_max)[0]


@op("_fake_quantize_learnable_per_channel_affine", meta=False)
def learnable_per_channel(self, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0):
    """Round to a grid of one scale a channel, which is learned."""
    point = _whole(zero_point, quant_min, quant_max)
    scale, point = _along(axis, self, scale, point)
    return per_tensor(self, scale, point, quant_min, quant_max)[0]


@op("_fake_quantize_learnable_per_tensor_affine_backward", meta=False)
def learnable_backward(grad, self, scale, zero_point, quant_min, quant_max, grad_factor=1.0):
    """Return the gradients of :func:`learnable`, as those of a single channel."""
    given = grad[None], self[None], scale, zero_point, 0, quant_min, quant_max, grad_factor
    of_x, *rest = learnable_per_channel_backward(*given)
    return of_x[0], *rest


@op("_fake_quantize_learnable_per_channel_affine_backward", meta=False)
def learnable_per_channel_backward(
    grad, self, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0
):
    """Return the gradients of :func:`learnable_per_channel`."""
    point = _whole(zero_point, quant_min, quant_max)
    scale, point = _along(axis, self, scale, point)
    steps, mask = _steps(self, scale, point, quant_min, quant_max)
    of_scale = jnp.where(mask, (steps * scale - self) / scale, steps) * grad * grad_factor
    of_point = jnp.where(mask, 0, -grad * scale * grad_factor)
    others = tuple(dim for dim in range(self.ndim) if dim != axis % self.ndim)
    return grad * mask, of_scale.sum(others), of_point.sum(others)
