"""A small model with the parts of Llama: RMS norms, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Config:
    """Sizes; the numbers of heads must be a multiple of the axis that splits them."""

    vocabulary: int = 256
    width: int = 64
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    groups: int = 2


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Queries or keys of shape (batch, heads, length, width), turned by their positions."""
    half = x.shape[-1] // 2
    positions = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
    rates = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions[:, None] * rates
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Attention(nn.Module):
    """Causal self-attention; several heads of queries share one of keys and values."""

    def __init__(self, config: Config):
        super().__init__()
        self.config, self.size = config, config.width // config.heads
        narrow = config.groups * self.size
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, narrow, bias=False)
        self.value = nn.Linear(config.width, narrow, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, length, width) to the same."""

        def heads(projected: torch.Tensor) -> torch.Tensor:
            return projected.unflatten(-1, (-1, self.size)).transpose(1, 2)

        query, key = rotated(heads(self.query(x))), rotated(heads(self.key(x)))
        shared = self.config.heads // self.config.groups
        key, value = (t.repeat_interleave(shared, 1) for t in (key, heads(self.value(x))))
        scores = query @ key.transpose(-1, -2) / self.size**0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a gated multilayer perceptron, each after a norm."""

    def __init__(self, config: Config):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(config.width), nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (batch, length, width) to the same."""
        x = x + self.attention(self.attention_norm(x))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Logits of the next token; ``constrain`` says how activations lie between two layers."""

    def __init__(self, config: Config, constrain: Callable = lambda x: x):
        super().__init__()
        self.constrain = constrain
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """From (batch, length) to (batch, length, vocabulary)."""
        x = self.constrain(self.embed(tokens))
        for layer in self.layers:
            x = self.constrain(layer(x))
        return self.head(self.norm(x))
