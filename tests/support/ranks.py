"""Ranks as processes of Python, which ``torchrun`` would start."""

from __future__ import annotations

import socket
from collections.abc import Callable

from tests.support.processes import forked_together


def variables(rank: int, size: int, port: int) -> dict[str, str | None]:
    """Return what ``torchrun`` sets."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return {
        **{name: str(value) for name, value in ranks.items()},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    """A port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def run(
    *arguments: str,
    size: int = 2,
    seconds: float = 300,
    changes: Callable[[int], dict[str, str | None]] = lambda rank: {},
) -> list[tuple[int, str]]:
    """Python with these arguments as so many ranks: exit status and output of each.

    ``$RANK`` among the arguments stands for the rank's number; ``changes`` are those of its
    variables.
    """
    port = free_port()
    ranks = [
        (
            tuple(str(rank) if one == "$RANK" else one for one in arguments),
            variables(rank, size, port) | changes(rank),
        )
        for rank in range(size)
    ]
    ended = forked_together(ranks, seconds)
    return [(done.returncode, done.stderr + done.stdout) for done in ended]


UNTIL_THE_GROUP_ENDS = """
import os, runpy, sys
import torch.distributed

def end(group=None):
    sys.stdout.flush()
    os._exit(0)

torch.distributed.destroy_process_group = end
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def printed_over_gloo(script: str) -> str:
    """Return what rank 0 of two ranks on the CPU prints until it destroys its process group.

    The ranks end there: PyTorch may wait for ever in what follows. DDP's reducer joins gloo's
    thread and holds the GIL, while that thread wants the GIL in order to drop the objects of its
    last collective (https://github.com/pytorch/pytorch/pull/179291).
    """
    (status, text), _ = run("-c", UNTIL_THE_GROUP_ENDS, script)
    assert status == 0, text
    return text
