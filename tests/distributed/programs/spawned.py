"""``torch_jax.spawn``: results of the processes, and an error in one of them."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import torch_jax


def main(rank: int, word: str) -> None:
    """Add up over the processes, or fail in one."""
    dist.init_process_group("jax")
    tensor = torch.ones(2, device="jax") * (rank + 1)
    dist.all_reduce(tensor)
    if word == "fail" and rank == 1:
        raise ValueError("rank one fails")
    if rank == 0 and word == "sum":
        print(word, tensor.tolist(), file=sys.stderr)  # into stdout Gloo writes, piece by piece
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_jax.spawn(main, 2, ("sum",))
    try:
        torch_jax.spawn(main, 2, ("fail",))
    except Exception as error:
        print("rank one fails" in str(error), file=sys.stderr)
