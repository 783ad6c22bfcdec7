"""Padding by a constant, by reflection and by the edge; a negative width crops.

``pad`` names (left, right) of the last dimension first.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax.ops.derivatives import transposed
from torch_jax.ops.registry import op


@op("constant_pad_nd")
def constant_pad_nd(self, pad, value=0):
    """Pad by a number, which is cast to the dtype of ``self``."""
    edges = [(pad[i], pad[i + 1], 0) for i in range(0, len(pad), 2)]
    edges += [(0, 0, 0)] * (self.ndim - len(edges))
    return lax.pad(self, jnp.asarray(value).astype(self.dtype), edges[::-1])


def _reflect(x, axis: int, before: int, after: int):
    end = x.shape[axis] - 1
    left = lax.slice_in_dim(x, 1, before + 1, axis=axis)
    right = lax.slice_in_dim(x, end - after, end, axis=axis)
    return jnp.concatenate([jnp.flip(left, axis), x, jnp.flip(right, axis)], axis)


def _replicate(x, axis: int, before: int, after: int):
    def repeat(at: int, count: int):
        edge = lax.slice_in_dim(x, at, at + 1, axis=axis)
        return jnp.broadcast_to(edge, (*x.shape[:axis], count, *x.shape[axis + 1 :]))

    return jnp.concatenate([repeat(0, before), x, repeat(x.shape[axis] - 1, after)], axis)


def _register(name: str, extend: Callable[..., jax.Array]) -> None:
    def forward(self, padding):
        x, crops = self, [(0, 0, 0)] * self.ndim
        for i in range(0, len(padding), 2):
            axis, (before, after) = self.ndim - 1 - i // 2, padding[i : i + 2]
            if before > 0 or after > 0:
                x = extend(x, axis, max(before, 0), max(after, 0))
            crops[axis] = min(before, 0), min(after, 0), 0
        return lax.pad(x, jnp.zeros((), x.dtype), crops)

    def backward(grad_output, self, padding):
        return transposed(lambda x: forward(x, padding), grad_output, self.shape)

    for n in (1, 2, 3):
        op(f"{name}{n}d", channels_last=("self",))(forward)
        op(f"{name}{n}d_backward")(backward)


_register("reflection_pad", _reflect)
_register("replication_pad", _replicate)
