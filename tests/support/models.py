"""Models for tests of anything: one with all that may get lost, and one of any function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Tied(nn.Module):
    """A model with tied weights, buffers of both kinds and a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 7)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.head.register_forward_hook(_double)

    def forward(self, x):
        return self.head(self.norm(self.embed(x)) * self.scale)


def _double(_module, _args, output):
    return output * 2


def tied(seed: int = 0) -> Tied:
    """A :class:`Tied` on the CPU, with the weights of this seed."""
    torch.manual_seed(seed)
    return Tied()


def is_tied(model: Any) -> bool:
    """Whether the two weights are one parameter."""
    return model.head.weight is model.embed.weight


class Function(nn.Module):
    """A function as a module, which ``torch.export`` asks for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)
