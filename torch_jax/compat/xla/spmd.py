"""``torch_xla.distributed.spmd``: tensors over devices, by marks; ``debugging`` shows the parts.

A marked tensor is one that ``torch_jax.shard`` would have laid over the mesh: a plain tensor whose
memory lies in parts. XLA lays out all other tensors (GSPMD), as for PyTorch/XLA.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax.experimental import mesh_utils
from jax.sharding import AxisType
from torch import nn

from torch_jax.core import waking
from torch_jax.distributed import sharding as own
from torch_jax.memory import sharding, storage

Spec = tuple[Any, ...]


class Mesh:
    """Devices in a grid.

    Args:
      device_ids: their numbers, in the order of the grid.
      mesh_shape: the lengths of its axes.
      axis_names: their names; without, a specification names axes by number.
    """

    def __init__(
        self, device_ids: Any, mesh_shape: Sequence[int], axis_names: Sequence[str] | None = None
    ):
        self.device_ids = np.asarray(device_ids).ravel()
        self.mesh_shape = tuple(int(length) for length in mesh_shape)
        self.axis_names = None if axis_names is None else tuple(axis_names)
        if self.axis_names is not None and len(set(self.axis_names)) != len(self.mesh_shape):
            raise ValueError(
                f"mesh_shape {self.mesh_shape} needs as many axis_names, not {axis_names}"
            )
        waking.wake()
        devices = {device.id: device for device in jax.devices()}
        numbers = set(self.device_ids.tolist())
        if not len(numbers) == len(self.device_ids) == self.size() or numbers - set(devices):
            raise ValueError(
                f"devices {self.device_ids.tolist()} make no mesh of shape {self.mesh_shape}: each "
                f"is there once, and there are {len(devices)}"
            )
        grid = np.array([devices[number] for number in self.device_ids.tolist()])
        names = self.axis_names or tuple(f"axis{at}" for at in range(len(self.mesh_shape)))
        self.jax_mesh = jax.sharding.Mesh(
            grid.reshape(self.mesh_shape), names, axis_types=(AxisType.Auto,) * len(names)
        )

    def size(self) -> int:
        """Return the number of devices."""
        return int(np.prod(self.mesh_shape))

    def shape(self) -> OrderedDict[Any, int]:
        """Return the length of each axis, by its name or number."""
        names = self.axis_names or range(len(self.mesh_shape))
        return OrderedDict(zip(names, self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> Any:
        """Return the numbers of the devices as a grid."""
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """Return the number of an axis, None if none has this name."""
        names = self.axis_names or ()
        return names.index(name) if name in names else None

    def named(self, spec: Any) -> Any:
        """Return a part of a specification, or a whole one, with axes by JAX's names for them."""
        if isinstance(spec, tuple | list):
            return tuple(self.named(one) for one in spec)
        return self.jax_mesh.axis_names[spec] if isinstance(spec, int | np.integer) else spec


class HybridMesh(Mesh):
    """Devices of several slices in a grid: each axis takes ``ici`` devices of ``dcn`` slices."""

    def __init__(
        self,
        *,
        ici_mesh_shape: Sequence[int],
        dcn_mesh_shape: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
    ):
        waking.wake()
        self.ici_mesh_shape = tuple(ici_mesh_shape)
        self.dcn_mesh_shape = tuple(dcn_mesh_shape or [1] * len(self.ici_mesh_shape))
        if np.prod(self.dcn_mesh_shape) == 1:
            grid = mesh_utils.create_device_mesh(self.ici_mesh_shape)
        else:
            grid = mesh_utils.create_hybrid_device_mesh(self.ici_mesh_shape, self.dcn_mesh_shape)
        super().__init__([device.id for device in grid.flat], grid.shape, axis_names)


ShardingType = enum.IntEnum(
    "ShardingType", "REPLICATED MAXIMAL TUPLE TILED MANUAL PARTIAL UNKNOWN", start=0
)


@dataclass
class ShardingSpec:
    """The layout of tensors over a mesh, as in ``MpDeviceLoader(input_sharding=...)``."""

    mesh: Mesh
    partition_spec: Spec
    minibatch: bool | None = False

    def jax_spec(self) -> Spec:
        """Return the specification by the names of ``mesh.jax_mesh``."""
        return self.mesh.named(tuple(self.partition_spec))

    def can_apply(self, t: torch.Tensor) -> bool:
        """Return whether a tensor has as many dimensions."""
        return len(t.shape) == len(self.partition_spec)

    def apply(self, t: torch.Tensor) -> None:
        """Mark a tensor with this specification."""
        mark_sharding(t, self.mesh, self.partition_spec)


class _OverDevices(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and is_sharded(instance)


class XLAShardedTensor(metaclass=_OverDevices):
    """``isinstance`` holds for tensors that lie over several devices: plain tensors."""


_global: list[Mesh | None] = [None]


def set_global_mesh(mesh: Mesh) -> None:
    """Make a mesh the default of FSDP and others."""
    _global[0] = mesh


def get_global_mesh() -> Mesh | None:
    """Return the mesh of :func:`set_global_mesh`."""
    return _global[0]


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """Return a mesh of all devices in a row."""
    waking.wake()
    count = jax.device_count()
    return Mesh(np.arange(count), (count,), None if axis_name is None else (axis_name,))


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: Spec) -> torch.Tensor:
    """Lay a tensor over a mesh, in place: a parameter, an input, or a value between operators.

    Args:
      t: the tensor, on the device; it is also returned.
      mesh: of all devices, or some.
      partition_spec: for each dimension an axis of the mesh, by name or number, a tuple of such, or
        None.

    Raises:
      ValueError: the specification has not as many entries as the tensor has dimensions, or the
        mesh does not divide one. PyTorch/XLA pads in such a case.
    """
    if len(t.shape) != len(partition_spec):
        raise ValueError(
            f"Partition spec length ({len(partition_spec)}) should be equal to the input rank "
            f"({len(t.shape)})."
        )
    _lay(t, mesh.jax_mesh, mesh.named(tuple(partition_spec)))
    return t


def _lay(t: torch.Tensor, mesh: jax.sharding.Mesh, spec: Spec) -> None:
    if isinstance(t, nn.Parameter):
        own.shard(t, mesh, spec)
    else:
        t.data = own.shard(t.detach(), mesh, spec)


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Let each device hold all of a tensor, in place."""
    if (found := sharding_of(t)) is not None:
        _lay(t, found.mesh, (None,) * t.dim())
    return t


def sharding_of(t: torch.Tensor) -> Any:
    """Return the ``jax.sharding.NamedSharding`` of a tensor's memory; None on one device."""
    return sharding.sharding_of(storage.held_by(t)) if storage.is_jax(t) else None


def is_sharded(t: torch.Tensor) -> bool:
    """Return whether a tensor lies over several devices."""
    return sharding_of(t) is not None


def wrap_as_sharded_tensor(t: Any) -> Any:
    """Return the argument: a tensor over devices is a tensor."""
    return t


wrap_if_sharded = unwrap_sharded_tensor = wrap_as_sharded_tensor
xla_patched_nn_linear_forward = nn.Linear.forward


def apply_xla_patch_to_nn_linear(module: nn.Module, *_: Any) -> nn.Module:
    """Return the module: products of more dimensions are not flattened here."""
    return module


def apply_backward_optimization_barrier(m: nn.Module) -> None:
    """Do nothing: gradients leave a step one by one."""


def visualize_tensor_sharding(t: torch.Tensor, **kwargs: Any) -> str:
    """Print a line for each device with the part that it holds; return the text."""
    found = sharding_of(t)
    lines = [f"{tuple(t.shape)} on one device"] if found is None else []
    for device, part in found.devices_indices_map(tuple(t.shape)).items() if found else ():
        ends = [f"{one.start or 0}:{'' if one.stop is None else one.stop}" for one in part]
        lines.append(f"{device}: [{', '.join(ends)}]")
    print("\n".join(lines))
    return "\n".join(lines)
