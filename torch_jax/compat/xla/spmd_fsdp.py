"""``SpmdFullyShardedDataParallel``: parameters in parts over one axis of a mesh (FSDPv2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_jax.compat.ax.mesh_util import SingleAxisSharder
from torch_jax.compat.xla import spmd, wrapping
from torch_jax.distributed import rules


class SpmdFullyShardedDataParallel(wrapping.Wrapper):
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
        mesh = mesh or spmd.get_global_mesh()
        if mesh is None:
            raise ValueError("No mesh found: set_global_mesh, or give mesh=")
        axes = {axis for axis in ("fsdp", extra_data_axis) if axis}
        if axes - set(mesh.axis_names or ()):
            raise ValueError(f"The mesh must have axes named {sorted(axes)}")
        if auto_wrap_policy is not None:
            wrapping.recursive_wrap(
                module,
                auto_wrap_policy,
                auto_wrapper_callable or SpmdFullyShardedDataParallel,
                only_wrap_children=True,
                mesh=mesh,
                shard_output=shard_output,
                extra_data_axis=extra_data_axis,
            )
        super().__init__(module)
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
