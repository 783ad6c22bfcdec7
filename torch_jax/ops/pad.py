"""Padding by a constant, by reflection and by the edge; a negative width crops.

``pad`` names (left, right) of the last dimension first.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax.ops.promotion import opmath
from torch_jax.ops.registry import op


@op("constant_pad_nd")
def constant_pad_nd(self, pad, value=0):
    """Pad by a number, which is cast to the dtype of ``self``."""
    edges = [(pad[i], pad[i + 1], 0) for i in range(0, len(pad), 2)]
    edges += [(0, 0, 0)] * (self.ndim - len(edges))
    return lax.pad(self, jnp.asarray(value).astype(self.dtype), edges[::-1])


def _extend(x, padding, left: Callable, right: Callable):
    """Concatenate to each padded dimension the results of ``left`` and ``right`` for its ends."""
    for i in range(len(padding) // 2):
        axis = x.ndim - 1 - i
        before, after = padding[2 * i : 2 * i + 2]
        size = x.shape[axis]
        parts = [lax.slice_in_dim(x, max(0, -before), size + min(0, after), axis=axis)]
        if before > 0:
            parts.insert(0, left(x, before, axis))
        if after > 0:
            parts.append(right(x, after, axis))
        x = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)
    return x


def _reflect(x, padding):
    def left(x, n, axis):
        return jnp.flip(lax.slice_in_dim(x, 1, n + 1, axis=axis), axis)

    def right(x, n, axis):
        end = x.shape[axis] - 1
        return jnp.flip(lax.slice_in_dim(x, end - n, end, axis=axis), axis)

    return _extend(x, padding, left, right)


def _replicate(x, padding):
    def repeat(edge, n, axis):
        return jnp.broadcast_to(edge, (*edge.shape[:axis], n, *edge.shape[axis + 1 :]))

    def left(x, n, axis):
        return repeat(lax.slice_in_dim(x, 0, 1, axis=axis), n, axis)

    def right(x, n, axis):
        end = x.shape[axis]
        return repeat(lax.slice_in_dim(x, end - 1, end, axis=axis), n, axis)

    return _extend(x, padding, left, right)


def _register(name: str, function: Callable) -> None:
    def forward(self, padding):
        return function(self, padding)

    def backward(grad_output, self, padding):
        grad = grad_output.astype(opmath(grad_output.dtype))
        like = jax.ShapeDtypeStruct(self.shape, grad.dtype)
        return jax.linear_transpose(lambda x: function(x, padding), like)(grad)[0]

    for n in (1, 2, 3):
        op(f"{name}{n}d", channels_last=("self",))(forward)
        op(f"{name}{n}d_backward")(backward)


_register("reflection_pad", _reflect)
_register("replication_pad", _replicate)
