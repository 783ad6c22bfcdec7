"""Trains a classifier in many processes; what differs between devices is what is named here.

``torchrun --nproc-per-node 2 -m examples.ddp --backend jax --device jax``, or without torchrun
``python -m examples.ddp --nproc 2 --backend gloo --device cpu``.
"""

import argparse

import torch_jax
from examples.ddp.training import main, rank


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="jax", help="as init_process_group has it")
    parser.add_argument("--device", default="jax")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2, help="batches for each step")
    parser.add_argument("--checkpoint", default="/tmp/ddp.pt", help="rank 0 writes it")
    parser.add_argument("--nproc", type=int, help="start so many processes, without torchrun")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = options()
    if chosen.nproc is None:
        main(chosen)
    else:
        torch_jax.spawn(rank, chosen.nproc, (chosen,))
