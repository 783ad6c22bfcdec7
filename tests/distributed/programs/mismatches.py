"""Two processes ask for different collectives; each prints its error, as JSON.

``python -m tests.distributed.programs.mismatches FILE`` writes ``FILE.RANK``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

dist.init_process_group("jax", timeout=timedelta(seconds=30))
rank = dist.get_rank()
four = torch.ones(4, device="jax")
said: dict[str, Any] = {}


def together(name: str, *calls: Callable[[], Any]) -> None:
    """Have each process do the call of its place, and keep what it is told, with the seconds."""
    begun = time.monotonic()
    try:
        calls[rank]()
        said[name] = ["nothing", 0.0]
    except dist.DistBackendError as error:
        said[name] = [str(error), time.monotonic() - begun]


def sum_of(*shape: int, **form: Any) -> Callable[[], Any]:
    """A sum of ones over the processes."""
    return lambda: dist.all_reduce(torch.ones(shape, device="jax", **form))


def first_of(root: int) -> Callable[[], Any]:
    """Take what one process has."""
    return lambda: dist.broadcast(torch.ones(4, device="jax"), root)


together("kind", sum_of(4), first_of(0))
together("shape", sum_of(4), sum_of(3))
together("dtype", sum_of(4), sum_of(4, dtype=torch.int32))
together("root", first_of(0), first_of(1))
highest = torch.ones(4, device="jax")
together("op", sum_of(4), lambda: dist.all_reduce(highest, dist.ReduceOp.MAX))
together("host", sum_of(4), lambda: dist.gather(four, None, 0))
together("barrier", dist.barrier, sum_of(4))

# after all of these the processes are in step
total = four.clone()
dist.all_reduce(total)
said["total"] = total.tolist()

# rank 0 calls in an order that both know by now, rank 1 leaves it
for _ in range(3):
    sum_of(2)()
    first_of(0)()
together("known", sum_of(2), first_of(0))
together("later", sum_of(2), sum_of(2))  # rank 0 has a program that nobody else runs

with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump(said, file)
