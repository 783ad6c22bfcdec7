"""The processes of a program of PyTorch/XLA: their numbers, and how they meet.

PyTorch/XLA's own collectives need no ``torch.distributed.init_process_group``, and a program may
call that later. So this file makes a group of their own, when the device is first named.
``defval``, PyTorch/XLA's number for programs without a device, has no effect.
"""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torch_jax import config
from torch_jax.core import waking
from torch_jax.distributed import joining, process_group

_TIMEOUT = timedelta(minutes=30)


def size(defval: int = 1) -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else _variable("WORLD_SIZE", 1)


def rank(defval: int = 0) -> int:
    """Return the number of this process."""
    return dist.get_rank() if dist.is_initialized() else _variable("RANK", 0)


def local_size() -> int:
    """Return the number of processes of this host."""
    return _variable("LOCAL_WORLD_SIZE", 1)


def local_rank(defval: int = 0) -> int:
    """Return the number of this process on its host."""
    return _variable("LOCAL_RANK", 0)


def _variable(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


@functools.cache
def store() -> Any:
    """Return the store at which the processes meet; ``torch.distributed`` may use it, too."""
    if size() == 1:
        return dist.HashStore()
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(*address, size(), rank() == 0, _TIMEOUT, multi_tenant=True)


@functools.cache
def group() -> Any:
    """Return the group of all processes, in which PyTorch/XLA's collectives run."""
    world: Any = dist.group.WORLD if dist.is_initialized() else None
    shared = world.get_group_store() if world is not None else store()
    ours = dist.PrefixStore("torch_xla", shared)
    joining.join(ours, rank(), size())
    return process_group.ProcessGroup(ours, rank(), tuple(range(size())), _TIMEOUT, "torch_xla")


@functools.cache
def begin() -> None:
    """Meet the other processes before the device is used, as JAX requires, and record steps.

    PyTorch/XLA records, too; ``TORCH_JAX_MODE=eager`` runs each operator at once.
    """
    if size() > 1:
        group()
    else:
        waking.wake()
    if "TORCH_JAX_MODE" not in os.environ:
        config.set("mode", "lazy")
