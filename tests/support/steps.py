"""The model, the batch and the training step of most tests.

Sizes are shared on purpose: each new shape is compiled anew. A test has sizes of its own only
where they matter to it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.support import values

BATCH, WIDTH, OUT = 3, 4, 2


def mlp(device: str = "jax") -> nn.Sequential:
    """A small network, its weights drawn on the CPU."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUT)).to(device)


def batch() -> torch.Tensor:
    """An input of :func:`mlp` on the device."""
    return values.randn(BATCH, WIDTH)


def mean_of_squares(output: torch.Tensor) -> torch.Tensor:
    """A loss that needs no target."""
    return output.square().mean()


def step_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[torch.Tensor], torch.Tensor] = mean_of_squares,
) -> Callable[..., torch.Tensor]:
    """A step of training as users write it: not compiled yet, and it returns the loss."""

    def step(*inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(*inputs))
        loss.backward()
        optimizer.step()
        return loss

    return step
