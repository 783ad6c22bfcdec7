"""Given in docs/distributed.md: a process alone, with eight devices."""

import os

import jax
import torch
import torch.nn.functional as F  # noqa: F401

import torch_jax  # noqa: F401

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0")
jax.config.update("jax_num_cpu_devices", 8)
rules = {"weight": ("model", None), "*": ()}
data = [(torch.randn(8), torch.randn(8)) for _ in range(128)]


def Model() -> torch.nn.Module:
    """A small classifier."""
    return torch.nn.Linear(8, 8)
