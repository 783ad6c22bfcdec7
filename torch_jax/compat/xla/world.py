"""The processes of a program of PyTorch/XLA: how they start, their numbers, and how they meet.

PyTorch/XLA's own collectives need no ``torch.distributed.init_process_group``, and a program may
call that later. So this file makes a group of their own, when the device is first named.
``defval``, PyTorch/XLA's number for programs without a device, has no effect.

The import of this file names the backend ``"xla"``: ``torch.distributed.init_process_group("xla",
init_method="xla://")`` is a group on device jax.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.core import ordinals, waking
from torch_jax.distributed import joining, process_group
from torch_jax.distributed import spawn as processes

BACKEND = "xla"
_TIMEOUT = timedelta(minutes=30)
_COUNTS = ("CPU_NUM_DEVICES", "GPU_NUM_DEVICES")


def spawn(
    fn: Callable[..., Any],
    args: tuple = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Run ``fn(index, *args)`` in new processes, or in this one if there is one only.

    Args:
      fn: called with the number of its process, and ``args``.
      args: further arguments, which are pickled.
      nprocs: how many; by default ``CPU_NUM_DEVICES`` or ``GPU_NUM_DEVICES``, else one.
      join: wait for all of them.
      daemon: whether they end with this process.
      start_method: ``"spawn"``, which is also taken for ``"fork"``: threads of JAX survive no fork.
    """
    count = nprocs or next((int(os.environ[n]) for n in _COUNTS if n in os.environ), 1)
    if count == 1:
        return fn(0, *args)
    return processes.spawn(fn, count, args, join=join, daemon=daemon)


def size(defval: int = 1) -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else _variable("WORLD_SIZE", 1)


def rank(defval: int = 0) -> int:
    """Return the number of this process."""
    return dist.get_rank() if dist.is_initialized() else _variable("RANK", 0)


local_size = ordinals.count


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


def _rendezvous(url: str, **_options: Any) -> Iterator[tuple[Any, int, int]]:
    """Meet the processes of ``xla://``, at the store of PyTorch/XLA's own collectives."""
    yield dist.PrefixStore("xla://", store()), rank(), size()


_own = dist.Backend.default_device_backend_map[pytorch.DEVICE_TYPE]
dist.Backend.register_backend(
    BACKEND, process_group.create, extended_api=True, devices=[pytorch.DEVICE_TYPE]
)
dist.Backend.default_device_backend_map[pytorch.DEVICE_TYPE] = _own
dist.register_rendezvous_handler(BACKEND, _rendezvous)
