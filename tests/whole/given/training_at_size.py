"""Given in docs/training-at-size.md: a process alone, with eight devices."""

import os

import jax
import torch

import torch_jax

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0")
jax.config.update("jax_num_cpu_devices", 8)
mesh = torch_jax.mesh(data=8)
layer = torch.nn.Linear(8, 8).to("jax")
x = torch.randn(8, 8, device="jax", requires_grad=True)


def Model() -> torch.nn.Module:
    """A small model."""
    return torch.nn.Linear(8, 8)


def loss_of(result: torch.Tensor) -> torch.Tensor:
    """A number to differentiate."""
    return result.square().mean()
