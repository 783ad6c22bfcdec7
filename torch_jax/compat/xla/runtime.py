"""``torch_xla.runtime``: the kind of the device, and the numbers of processes and devices."""

from __future__ import annotations

from typing import Any

import jax

from torch_jax import config
from torch_jax.compat.xla import world, xla_model
from torch_jax.core import waking


def device_type() -> str:
    """Return the kind of the device: ``"CPU"``, ``"CUDA"``, ``"TPU"``."""
    return xla_model.xla_device_hw(xla_model.xla_device())


def using_pjrt() -> bool:
    """Return ``True``: JAX always runs programs by PJRT, and every device computes in bfloat16."""
    return True


is_bf16_supported = using_pjrt

# each process has one device
world_size = process_count = global_device_count = world.size
global_ordinal = process_index = world.rank
local_process_count = local_device_count = world.local_size
local_ordinal = world.local_rank


def addressable_device_count() -> int:
    """Return the number of devices of this process."""
    return 1


_spmd = [False]


def is_spmd() -> bool:
    """Return whether :func:`use_spmd` was called."""
    return _spmd[0]


def use_spmd(auto: bool = False) -> None:
    """Let one process have many devices, over which ``spmd.mark_sharding`` lays tensors.

    Nothing else changes: ``torch_jax.mesh`` and ``torch_jax.shard`` ask for no mode.
    """
    if auto:
        raise NotImplementedError(
            "XLA's automatic sharding is not asked for here: mark parameters and inputs "
            "(xs.mark_sharding), and XLA lays out all values between them"
        )
    world.begin()
    _spmd[0] = True


def global_runtime_device_count() -> int:
    """Return the number of devices of all processes."""
    world.begin()
    return jax.device_count()


def addressable_runtime_device_count() -> int:
    """Return the number of devices of this process."""
    world.begin()
    return jax.local_device_count()


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """Return the attributes of all devices."""
    world.begin()
    found = []
    for device in jax.devices():
        known = {n: getattr(device, n, None) for n in ("coords", "core_on_chip", "slice_index")}
        given = {name: value for name, value in known.items() if value is not None}
        found.append({"name": f"{device_type()}:{device.id}"} | given)
    return found


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """Return the attributes of a device, such as ``"TPU:0"``."""
    return next(one for one in global_runtime_device_attributes() if one["name"] == device)


def host_index() -> int:
    """Return the number of this host."""
    return world.rank() // world.local_size()


def set_device_type(pjrt_device: str) -> None:
    """Choose the platform, before the device is used."""
    if waking.is_awake() and device_type() != pjrt_device:
        raise RuntimeError("Can't change device type after XLA runtime is initialized")
    jax.config.update("jax_platforms", pjrt_device.lower())


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keep compiled programs in a folder."""
    config.set("cache_dir", path)
    config.set("cache", True)
