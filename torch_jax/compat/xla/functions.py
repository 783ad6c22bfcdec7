"""``torch_xla.core.functions``: collectives through which gradients flow."""

from __future__ import annotations

from typing import Any

import torch

from torch_jax.compat.xla import world, xla_model


class AllReduce(torch.autograd.Function):
    """A reduction whose gradient each process uses for its own part."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, kind: str, scale: float, groups: Any) -> Any:
        """Reduce."""
        result = xla_model.all_reduce(kind, value, scale, groups)
        ctx.kind, ctx.scale = kind, scale
        ctx.save_for_backward(value, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient of the tensor of this process."""
        value, result = ctx.saved_tensors
        gradient = gradient * ctx.scale
        if ctx.kind == xla_model.REDUCE_MUL:
            others = torch.where(value != 0, result / (value * ctx.scale), 0.0)
            gradient = gradient * others
        elif ctx.kind in (xla_model.REDUCE_MIN, xla_model.REDUCE_MAX):
            gradient = torch.where(value * ctx.scale == result, gradient, 0.0)
        elif ctx.kind != xla_model.REDUCE_SUM:
            raise RuntimeError(f"Unsupported reduce type: {ctx.kind}")
        return gradient, None, None, None


def all_reduce(
    reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: Any = None
) -> torch.Tensor:
    """Reduce over the processes."""
    return AllReduce.apply(value, reduce_type, scale, groups)


class AllGather(torch.autograd.Function):
    """A gathering whose gradient each process uses in part."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dim: int) -> torch.Tensor:
        """Gather."""
        ctx.dim = dim
        return xla_model.all_gather(value, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the part of this process."""
        return gradient.chunk(world.size(), ctx.dim)[world.rank()].clone(), None


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Return the tensors of all processes, one after the other along a dimension."""
    return AllGather.apply(value, dim)


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """Return the product of a weight, with columns over the processes, and each process's input.

    Args:
      w: the columns of this process.
      x: the input of this process, of as many rows as there are columns in all.
      split: the number of parts of the input, computed in turn, which saves memory.
    """
    parts = []
    for one in x.chunk(split, 1):
        rows = all_gather(one, 1).narrow(0, world.rank() * w.size(1), w.size(1))
        whole = all_reduce(xla_model.REDUCE_SUM, w @ rows)
        parts.append(whole.narrow(1, world.rank() * one.size(1), one.size(1)))
    return torch.cat(parts, 1)
