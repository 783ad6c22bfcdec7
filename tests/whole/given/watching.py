"""Given in docs/watching.md: a training step and its batch."""

import torch

_weights = torch.ones(4, 4, device="jax", requires_grad=True)
batch = torch.ones(3, 4, device="jax")


def train_step(batch: torch.Tensor) -> None:
    (batch @ _weights).sum().backward()
