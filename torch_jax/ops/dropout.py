"""Dropout."""

import jax
import jax.numpy as jnp

from torch_jax.ops.promotion import floating
from torch_jax.ops.registry import op


@op("native_dropout", random=True, drawn_like="input")
def native_dropout(input, p, train, *, key):
    """Return the input with a part ``p`` zeroed and the rest scaled up; and the rest's mask."""
    if train is False:
        return input, jnp.ones(input.shape, bool)
    keep = 1 - jnp.asarray(p, jnp.float32)
    mask = jax.random.bernoulli(key, keep, input.shape)
    return native_dropout_backward(input, mask, jnp.where(keep > 0, 1 / keep, 0)), mask


@op("native_dropout_backward")
def native_dropout_backward(grad_output, mask, scale):
    """Return ``grad_output * mask * scale``."""
    return grad_output * (mask * scale).astype(floating(grad_output.dtype))
