"""``torchax.mesh_util``: models over the devices of a mesh, by a rule for their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch
from jax.sharding import AxisType, PartitionSpec
from torch import nn

from torch_jax.distributed import rules, sharding

Sharder = Callable[[str, Any], PartitionSpec]


class SingleAxisSharder:
    """Splits the first dimension of a tensor that an axis divides.

    Args:
      axis_name: of the mesh.
      axis_size: its length.
      replicate_unshardable: keep tensors whole that have no such dimension, in place of raising.
    """

    def __init__(self, axis_name: str, axis_size: int, replicate_unshardable: bool = False):
        self.axis_name, self.axis_size = axis_name, axis_size
        self.replicate_unshardable = replicate_unshardable

    def __call__(self, name: str, shapedtype: Any) -> PartitionSpec:
        """Return the specification of a tensor."""
        shape = shapedtype.shape
        fits = [at for at, length in enumerate(shape) if length % self.axis_size == 0]
        if not (fits or self.replicate_unshardable):
            raise AssertionError(
                f"Unable to find a dim to shard because None of the dims ({shape}) in shape is "
                f"multiple of {self.axis_size}"
            )
        axes = (self.axis_name if at in fits[:1] else None for at in range(len(shape)))
        return PartitionSpec(*axes)


class Mesh:
    """A mesh of JAX's, and a rule for the specification of each tensor of a model on it."""

    def __init__(self, jax_mesh: Any, sharder: Sharder | None = None):
        self.jax_mesh = jax_mesh
        if sharder is None and len(jax_mesh.axis_names) == 1:
            (axis,) = jax_mesh.axis_names
            sharder = SingleAxisSharder(axis, jax_mesh.shape[axis])
        self._sharder = sharder

    @classmethod
    def fsdp_mesh(cls, axis_name: str = "fsdp") -> Mesh:
        """Return a mesh of all devices in a row; tensors that cannot be split stay whole."""
        count = jax.device_count()
        mesh = jax.make_mesh((count,), (axis_name,), (AxisType.Auto,))
        return cls(mesh, SingleAxisSharder(axis_name, count, True))

    def initialize_model_sharded(
        self,
        model_class: Callable[..., nn.Module],
        init_args: tuple,
        init_kwargs: dict[str, Any] | None = None,
        override_sharder: Sharder | None = None,
    ) -> nn.Module:
        """Return a model made in its parts: each device makes its own, by ``reset_parameters``."""
        with torch.device("meta"):
            model = model_class(*init_args, **(init_kwargs or {}))
        return self.shard_model(model, override_sharder)

    def shard_model(self, model: nn.Module, override_sharder: Sharder | None = None) -> nn.Module:
        """Lay a model over the mesh, in place."""
        sharder = override_sharder or self._sharder
        if sharder is None:
            raise ValueError("a mesh of several axes needs a sharder: Mesh(jax_mesh, sharder)")
        named = dict(rules.tensors_of(model))
        specs = {name: sharder(name, tensor) for name, tensor in named.items()}
        return sharding.shard(model, self.jax_mesh, specs)
