"""Softmax and its logarithm, and their gradients out of their results.

Half types are computed in float32 and rounded once. Along an empty dimension nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from torch_jax.ops.promotion import opmath
from torch_jax.ops.reduction import axes
from torch_jax.ops.registry import op


def _wide(x: jax.Array) -> jax.Array:
    """Return ``x`` in the dtype of computation, with a dimension even where it is a number."""
    return jnp.atleast_1d(x).astype(opmath(x.dtype))


def _enter(name: str, function: Callable[..., jax.Array]) -> None:
    @op(name)
    def lowering(self, dim, half_to_float):
        """Ignore ``half_to_float``, which only sets the dtype of the output."""
        axes(self, dim)  # raises for a dim that there is not, also where nothing is computed
        return self if self.size == 0 else function(_wide(self), dim).reshape(self.shape)


_enter("_softmax", jax.nn.softmax)
_enter("_log_softmax", jax.nn.log_softmax)


@op("_softmax_backward_data")
def softmax_backward(grad_output, output, dim, input_dtype):
    """Return ``y (g - sum(g y))``."""
    g, y = _wide(grad_output), _wide(output)
    gy = g * y
    return (gy - y * jnp.sum(gy, dim, keepdims=True)).reshape(output.shape)


@op("_log_softmax_backward_data")
def log_softmax_backward(grad_output, output, dim, input_dtype):
    """Return ``g - softmax sum(g)``."""
    g, y = _wide(grad_output), _wide(output)
    return (g - jnp.exp(y) * jnp.sum(g, dim, keepdims=True)).reshape(output.shape)


@op("_safe_softmax")
def safe_softmax(self, dim, dtype=None):
    """Return zeros where a whole row is minus infinity."""
    axes(self, dim)
    if self.size == 0:
        return self
    x = _wide(self if dtype is None else self.astype(dtype))
    masked = jnp.all(x == -jnp.inf, dim, keepdims=True)
    result = jnp.where(masked, 0, jax.nn.softmax(jnp.where(masked, 0, x), dim))
    return result.reshape(self.shape)


@op("_masked_softmax")
def masked_softmax(self, mask, dim=None, mask_type=None):
    """Return softmax of unmasked elements; type 0 masks (L, L), type 1 masks (B, L).

    Where all are masked it is NaN.
    """
    if mask_type is None and mask.shape != self.shape:
        raise RuntimeError("Mask Type should be defined")
    if mask_type == 0 and mask.ndim == 2:
        mask = mask[None, None]
    elif mask_type == 1 and mask.ndim == 2:
        mask = mask[:, None, None]
    dim = -1 if dim is None else dim
    return jax.nn.softmax(jnp.where(mask, -jnp.inf, _wide(self)), dim).reshape(self.shape)


@op("_masked_softmax_backward")
def masked_softmax_backward(grad_output, output, mask, dim=None):
    """Return the gradient of softmax, and 0 where masked."""
    grad = softmax_backward(grad_output, output, -1 if dim is None else dim, None)
    return jnp.where(jnp.broadcast_to(mask.reshape(mask.shape), output.shape), 0, grad)
