"""``torch_jax.initialize``: processes on many hosts become one program over all their devices."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import jax
import torch

from torch_jax._private import jax_processes
from torch_jax.core import waking
from torch_jax.distributed import joining

_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Processes(NamedTuple):
    """The place of this process among those that have joined."""

    rank: int  # from 0
    size: int


def initialize(
    coordinator: str | None = None, processes: int | None = None, rank: int | None = None
) -> Processes:
    """Join the processes of other hosts: ``torch_jax.mesh`` then takes the devices of them all.

    Every process calls this before its first use of the device, and then runs the same script. In
    a process that has joined, it only returns the place of this process.

    Without arguments, the variables of ``torchrun`` are taken where they are set; otherwise
    ``jax.distributed.initialize`` looks for Slurm, Open MPI, Kubernetes and Cloud TPU.

    Args:
      coordinator: ``"host:port"`` at which the others reach the process of rank 0.
      processes: how many there are.
      rank: the number of this process.

    Raises:
      RuntimeError: the device has been used before, or no other process could be found.
      ValueError: only some of the arguments are given.

    >>> initialize(processes=1)
    Processes(rank=0, size=1)
    """
    given = {"coordinator": coordinator, "processes": processes, "rank": rank}
    missing = [name for name, value in given.items() if value is None]
    if processes == 1:
        waking.wake()
    elif jax_processes.is_connected():
        pass
    elif len(missing) == len(given) and all(name in os.environ for name in _OF_TORCHRUN):
        _meet("env://")
    elif len(missing) == len(given):
        joining.refuse_started("torch_jax.initialize()")
        jax_processes.connect_as_found()
        waking.wake()
    elif missing:
        raise ValueError(
            f"torch_jax.initialize: {', '.join(missing)} must be given, too; or nothing at all, "
            "for torchrun, Slurm, Open MPI, Kubernetes and Cloud TPU"
        )
    else:
        _meet(f"tcp://{coordinator}", rank=int(rank or 0), world_size=int(processes or 0))
    return Processes(jax.process_index(), jax.process_count())


def _meet(where: str, **who: Any) -> None:
    """Find the others at an address, as ``torch.distributed`` does."""
    joining.refuse_started("torch_jax.initialize()")
    store, rank, size = next(torch.distributed.rendezvous(where, **who))
    joining.join(store, rank, size)
