"""Given in docs/distributed.md: a process alone."""

import os

import torch
import torch.nn.functional as F  # noqa: F401

import torch_jax  # noqa: F401

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0")


def Model() -> torch.nn.Module:
    """A small classifier."""
    return torch.nn.Linear(8, 4)
