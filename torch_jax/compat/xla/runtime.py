"""``torch_xla.runtime``: what the device is, and how many processes there are."""

from __future__ import annotations

from torch_jax import config
from torch_jax.compat.xla import world, xla_model


def device_type() -> str:
    """What the device is: ``"CPU"``, ``"CUDA"``, ``"TPU"``."""
    return xla_model.xla_device_hw(xla_model.xla_device())


def using_pjrt() -> bool:
    """Whether PJRT runs the programs: JAX always does so."""
    return True


def world_size() -> int:
    """How many processes there are."""
    return world.size()


def global_ordinal() -> int:
    """The number of this process."""
    return world.rank()


def local_ordinal() -> int:
    """The number of this process on its host."""
    return world.local_rank()


def process_count() -> int:
    """How many processes there are."""
    return world.size()


def process_index() -> int:
    """The number of this process."""
    return world.rank()


def local_process_count() -> int:
    """How many processes this host has."""
    return world.local_size()


def global_device_count() -> int:
    """How many devices all processes have: one each."""
    return world.size()


def local_device_count() -> int:
    """How many devices the processes of this host have."""
    return world.local_size()


def addressable_device_count() -> int:
    """How many devices this process has."""
    return 1


def is_spmd() -> bool:
    """Whether one process has many devices, as ``torch_jax.mesh`` gives."""
    return False


def use_spmd(auto: bool = False) -> None:
    """There is no mode for that: raises, and names what there is."""
    raise NotImplementedError(
        "PyTorch/XLA's SPMD has its own names here: torch_jax.mesh makes the mesh and "
        "torch_jax.shard lays tensors and modules over it; docs/sharding.md shows how"
    )


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keep compiled programs in a folder."""
    config.set("cache_dir", path)
    config.set("cache", True)
