"""``torch_jax.spawn``: a function in many processes, with the variables that ``torchrun`` sets."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch.multiprocessing


def spawn(
    fn: Callable[..., Any], nprocs: int, args: tuple = (), join: bool = True, daemon: bool = False
) -> Any:
    """Run ``fn(rank, *args)`` in new processes of this host, for scripts without ``torchrun``.

    In each of them ``torch.distributed.init_process_group("jax")`` finds the others. The function
    must be importable, and the script's own work be under ``if __name__ == "__main__":``.

    Args:
      fn: called with its rank and ``args``.
      nprocs: how many processes.
      args: further arguments, which are pickled.
      join: wait for all of them; an error in one ends the others, and is raised.
      daemon: whether they end with this process.

    Returns:
      None, or the ``torch.multiprocessing.ProcessContext`` where ``join`` is False.
    """
    if nprocs < 1:
        raise ValueError(f"torch_jax.spawn: nprocs must be at least 1, but is {nprocs}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return torch.multiprocessing.start_processes(
        _run, (fn, nprocs, port, args), nprocs, join, daemon, start_method="spawn"
    )


def _run(rank: int, fn: Callable[..., Any], nprocs: int, port: int, args: tuple) -> None:
    of_torchrun = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": nprocs,
        "LOCAL_WORLD_SIZE": nprocs,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in of_torchrun.items()})
    fn(rank, *args)
