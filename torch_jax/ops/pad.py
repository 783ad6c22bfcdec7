"""Padding by a constant, by reflection and by the edge; a negative width crops.

``pad`` names (left, right) of the last dimension first.
"""

from __future__ import annotations

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


def _register(name: str, mode: str) -> None:
    def forward(self, padding):
        edges = [(0, 0)] * self.ndim
        for i in range(0, len(padding), 2):
            edges[self.ndim - 1 - i // 2] = padding[i : i + 2]
        x = jnp.pad(self, [(max(low, 0), max(high, 0)) for low, high in edges], mode)
        crops = [(min(low, 0), min(high, 0), 0) for low, high in edges]
        return lax.pad(x, jnp.zeros((), x.dtype), crops)

    def backward(grad_output, self, padding):
        return transposed(lambda x: forward(x, padding), grad_output, self.shape)

    for n in (1, 2, 3):
        op(f"{name}{n}d", channels_last=("self",))(forward)
        op(f"{name}{n}d_backward")(backward)


_register("reflection_pad", "reflect")
_register("replication_pad", "edge")
