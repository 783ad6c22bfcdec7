"""``torch_xla.distributed.fsdp``: a device for each process, by PyTorch's FSDP2."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from torch_jax._private import pytorch
from torch_jax.compat.xla import world, wrapping
from torch_jax.compat.xla.xla_model import xla_device


class XlaFullyShardedDataParallel(wrapping.Wrapper):
    """A module whose parameters lie in parts over the processes (``fully_shard``).

    PyTorch/XLA's further options, about XLA's layout of collectives, are ignored; they do not
    change values.

    Args:
      module: on any device.
      reshard_after_forward: whether whole parameters are given up after the forward pass.
      compute_dtype: of parameters while the module computes.
      fp32_reduce_scatter: whether gradients are summed as float32.
      auto_wrap_policy: chooses the parts that are units of their own.
      auto_wrapper_callable: makes them, in place of this class.
      kwargs: further options of PyTorch/XLA.
    """

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        compute_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        **kwargs: Any,
    ):
        if isinstance(module, XlaFullyShardedDataParallel):
            raise RuntimeError("Cannot wrap a module that is already wrapped with FSDP")
        module = module.to(xla_device())
        options = {
            "reshard_after_forward": reshard_after_forward,
            "compute_dtype": compute_dtype,
            "fp32_reduce_scatter": fp32_reduce_scatter,
        }
        if auto_wrap_policy is not None:
            wrapper = auto_wrapper_callable or XlaFullyShardedDataParallel
            wrapping.recursive_wrap(
                module, auto_wrap_policy, wrapper, only_wrap_children=True, **options, **kwargs
            )
        super().__init__(module)
        reduced = torch.float32 if fp32_reduce_scatter else None
        fully_shard(
            module,
            mesh=_mesh(),
            reshard_after_forward=reshard_after_forward,
            mp_policy=MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=reduced),
        )

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, **kwargs: Any) -> Any:
        """Scale the gradients of all processes by their norm."""
        return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)


@functools.cache
def _mesh() -> Any:
    """Return a mesh of all processes in a row."""
    if not dist.is_initialized():
        dist.init_process_group(world.BACKEND, init_method="xla://")
    return init_device_mesh(pytorch.DEVICE_TYPE, (world.size(),))


def checkpoint_module(module: nn.Module) -> nn.Module:
    """Let a module be computed again in the backward pass."""
    module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
    return module
