"""Modules whose parameters lie in parts, over processes or over one axis of a mesh (FSDP).

The parts of a module that are units of their own are chosen by a policy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, wrap
from torch.utils.checkpoint import checkpoint

from torch_jax._private import pytorch
from torch_jax.compat.ax.mesh_util import SingleAxisSharder
from torch_jax.compat.xla import spmd, world
from torch_jax.compat.xla.xla_model import xla_device
from torch_jax.distributed import rules


def _of_pytorch(policy: Callable[..., bool]) -> Callable[..., bool]:
    """Return a policy of PyTorch's whose third argument has PyTorch/XLA's name."""

    def call(module: nn.Module, recurse: bool, unwrapped_params: int, *args: Any, **kwargs: Any):
        return policy(module, recurse, unwrapped_params, *args, **kwargs)

    return functools.update_wrapper(call, policy)


always_wrap_policy = wrap.always_wrap_policy
lambda_auto_wrap_policy = _of_pytorch(wrap.lambda_auto_wrap_policy)
transformer_auto_wrap_policy = _of_pytorch(wrap.transformer_auto_wrap_policy)
size_based_auto_wrap_policy = _of_pytorch(wrap.size_based_auto_wrap_policy)


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Callable[..., bool],
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: Any = (),
    ignored_params: Any = (),
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wrap the parts that a policy chooses; return the module and the wrapped parameters' count."""

    def policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return auto_wrap_policy(module=module, recurse=recurse, unwrapped_params=nonwrapped_numel)

    ignored = set(ignored_modules), set(ignored_params)
    return pytorch.recursive_wrap(
        module, policy, wrapper_cls, *ignored, only_wrap_children, **kwargs
    )


class Wrapper(nn.Module):
    """A module around another, whose attributes it has."""

    def __init__(self, module: nn.Module, policy: Any = None, wrapper: Any = None, **options: Any):
        super().__init__()
        if policy is not None:
            wrapper = wrapper or type(self)
            recursive_wrap(module, policy, wrapper, only_wrap_children=True, **options)
        self._orig_module = module

    @property
    def module(self) -> nn.Module:
        """Return the module inside."""
        return self._orig_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result."""
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of this module, or of the one inside."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    def __getitem__(self, key: Any) -> Any:
        """Return a part of a sequence of modules."""
        return self.module[key]  # type: ignore[index]


class XlaFullyShardedDataParallel(Wrapper):
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
        super().__init__(module, auto_wrap_policy, auto_wrapper_callable, **options, **kwargs)
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


class SpmdFullyShardedDataParallel(Wrapper):
    """A module whose parameters lie in parts over the axis ``fsdp`` of a mesh, and its results.

    ``torch_jax.shard(module, mesh, spec)`` does this for a module without a wrapper.

    Args:
      module: parameters that were marked before keep their layout.
      mesh: with an axis named ``fsdp``; the global mesh where none is given.
      shard_output: called with the module's result, and the mesh; marks the first dimension of a
        tensor, or of the first one of a tuple, by default.
      auto_wrap_policy: chooses parts that are wrapped like the module.
      auto_wrapper_callable: wraps them, in place of this class.
      extra_data_axis: an axis over which results are split, too.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        mesh: spmd.Mesh | None = None,
        shard_output: Callable[[Any, spmd.Mesh], Any] | None = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
        **kwargs: Any,
    ):
        if isinstance(module, SpmdFullyShardedDataParallel):
            raise RuntimeError(
                "Cannot wrap a module that is already wrapped with FSDP: wrap its parts first"
            )
        if (mesh := mesh or spmd.get_global_mesh()) is None:
            raise ValueError("No mesh found: set_global_mesh, or give mesh=")
        axes = {axis for axis in ("fsdp", extra_data_axis) if axis}
        if axes - set(mesh.axis_names or ()):
            raise ValueError(f"The mesh must have axes named {sorted(axes)}")
        options = {"mesh": mesh, "shard_output": shard_output, "extra_data_axis": extra_data_axis}
        super().__init__(module, auto_wrap_policy, auto_wrapper_callable, **options)
        self._mesh, self._data = mesh, extra_data_axis
        self._shard_output = shard_output or self._mark_output
        splits = SingleAxisSharder("fsdp", mesh.shape()["fsdp"], replicate_unshardable=True)
        for name, tensor in rules.tensors_of(module):
            whole = (None,) * tensor.dim()  # as buffers stay
            spec = tuple(splits(name, tensor)) if isinstance(tensor, nn.Parameter) else whole
            if not spmd.is_sharded(tensor):
                spmd.mark_sharding(tensor, mesh, spec)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result, marked."""
        output = self.module(*args, **kwargs)
        self._shard_output(output, self._mesh)
        return output

    def _mark_output(self, output: Any, mesh: spmd.Mesh) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if not isinstance(first, torch.Tensor):
            raise RuntimeError(
                f"The output type is not supported: {type(output)}. Please provide your own "
                "shard_output callable."
            )
        if first.dim():
            axes = (self._data, "fsdp") if self._data else "fsdp"
            spmd.mark_sharding(first, mesh, (axes, *[None] * (first.dim() - 1)))
