"""Two processes leave their order by ways that both know, and wait for each other in two groups.

The first is seen where every call is compared (``TORCH_DISTRIBUTED_DEBUG=DETAIL``); the second ends
with the time-out.
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

dist.set_debug_level_from_env()  # forks of tests have imported torch before they have the variable
dist.init_process_group("jax")
groups = [dist.new_group([0, 1], timeout=timedelta(seconds=4)) for _ in range(2)]
tensor = torch.ones(4, device="jax")


def call(which: str) -> None:
    """One of two collectives."""
    dist.all_reduce(torch.ones(2, device="jax")) if which == "a" else dist.broadcast(tensor, 0)


for which in "abaabb":
    call(which)
try:
    call("ab"[dist.get_rank()])
except dist.DistBackendError as error:
    sys.stderr.write(f"differ: {error}\n")  # into stdout Gloo writes, piece by piece
try:
    dist.all_reduce(tensor[dist.get_rank() :], group=groups[dist.get_rank()])
except dist.DistBackendError as error:
    sys.stderr.write(f"told: {error}\n")
