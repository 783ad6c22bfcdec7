"""RMSNorm as one kernel each way: rows come in blocks, and are read once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax.experimental import pallas as pl

import torch_jax

BLOCK = 8  # rows


def _rows(width: int) -> pl.BlockSpec:
    return pl.BlockSpec((BLOCK, width), lambda i: (i, 0))


def _all_of_one(width: int) -> pl.BlockSpec:
    return pl.BlockSpec((1, width), lambda i: (0, 0))


def _grid(x, *_others, **_static):
    return (x.shape[0] // BLOCK,)


def _parts(x):
    """One row for each block."""
    return jax.ShapeDtypeStruct((x.shape[0] // BLOCK, x.shape[1]), x.dtype)


@torch_jax.pallas_op(
    out_shape=lambda x, *_, **__: (x, _parts(x)),
    grid=_grid,
    in_specs=lambda x, *_, **__: [_rows(x.shape[1]), _all_of_one(x.shape[1]), _rows(x.shape[1])],
    out_specs=lambda x, *_, **__: (
        _rows(x.shape[1]),
        pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0)),
    ),
)
def backward_kernel(x_ref, scale_ref, gradient_ref, dx_ref, dscale_ref, *, eps):
    """Gradients of a block of rows, and the block's part of the gradient of the scale."""
    x, gradient = x_ref[...], gradient_ref[...]
    inverse = jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + eps)
    normed, scaled = x * inverse, gradient * scale_ref[...]
    dx_ref[...] = inverse * (scaled - normed * jnp.mean(scaled * normed, axis=1, keepdims=True))
    dscale_ref[...] = jnp.sum(gradient * normed, axis=0, keepdims=True)


def _backward(arguments, results, gradient, *, eps):
    dx, parts = backward_kernel.of_arrays(*arguments, gradient, eps=eps)
    return dx, jnp.sum(parts, axis=0, keepdims=True)


@torch_jax.pallas_op(
    out_shape=lambda x, scale, *, eps: x,
    grid=_grid,
    in_specs=lambda x, scale, *, eps: [_rows(x.shape[1]), _all_of_one(x.shape[1])],
    out_specs=lambda x, scale, *, eps: _rows(x.shape[1]),
    backward=_backward,
)
def forward_kernel(x_ref, scale_ref, o_ref, *, eps):
    """A block of rows."""
    x = x_ref[...]
    mean = jnp.mean(x * x, axis=1, keepdims=True)
    o_ref[...] = x * jax.lax.rsqrt(mean + eps) * scale_ref[...]


def rms_norm(x: torch.Tensor, scale: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """RMSNorm over the last dimension; all others together are a multiple of ``BLOCK``."""
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] % BLOCK:
        raise ValueError(f"{rows.shape[0]} rows are no multiple of {BLOCK}")
    return forward_kernel(rows, scale[None], eps=eps).view_as(x)


class RMSNorm(torch.nn.Module):
    """``torch.nn.RMSNorm`` as a kernel."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Norm the last dimension."""
        return rms_norm(x, self.weight, self.eps)
