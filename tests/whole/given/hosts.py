"""Given in docs/hosts.md: a process alone, with eight devices."""

import os

import jax
import torch

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0")
jax.config.update("jax_num_cpu_devices", 8)
model = torch.nn.Linear(8, 8)
rules = {"weight": ("model", None), "*": ()}
data = [(torch.randn(8), torch.randn(8)) for _ in range(128)]


def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss."""
    return torch.nn.functional.mse_loss(model(x), y)
