"""A training step of a Llama over a mesh, as ``python -m torch_jax plan`` compiles it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_jax
from torch_jax.planning.sizes import Model

AXES = "data", "fsdp", "tensor"
"""The axes of a mesh: ``data`` splits the batch, ``fsdp`` the batch and all matrices, ``tensor``
heads and hidden units."""
RULES = {
    "*.out.weight": ("fsdp", "tensor"),
    "*.down.weight": ("fsdp", "tensor"),
    "embed.weight": ("fsdp", "tensor"),
    "*norm.weight": (),
    "*.weight": ("tensor", "fsdp"),
}
"""Say how parameters lie: rows of the first product over ``tensor``, columns of the second.
An embedding that lay the other way would have the tokens of all chips gathered."""
_BATCH = "data", "fsdp"


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return queries or keys of shape (batch, heads, length, width), turned by their positions."""
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Layer(nn.Module):
    """Attention and a gated multilayer perceptron, each after a norm."""

    def __init__(self, sizes: Model):
        super().__init__()
        width, hidden, self.head = sizes.hidden_size, sizes.intermediate_size, sizes.head
        queries = sizes.num_attention_heads * self.head
        keys = sizes.num_key_value_heads * self.head
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = _linear(width, queries), _linear(queries, width)
        self.key, self.value = _linear(width, keys), _linear(width, keys)
        self.gate, self.up, self.down = (
            _linear(width, hidden), _linear(width, hidden), _linear(hidden, width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Return an output of the shape of ``x``, (batch, length, width)."""
        h = self.attention_norm(x)
        query, key, value = (
            project(h).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(
            turned(query, angles), turned(key, angles), value, is_causal=True, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Logits of the next token.

    ``between`` lays out activations between layers; ``again`` computes layers again in the
    backward pass; ``loop`` makes one loop of them.
    """

    def __init__(self, sizes: Model, between: Callable, again: bool, loop: bool):
        super().__init__()
        self.between, self.again, self.loop, self.pairs = between, again, loop, sizes.head // 2
        self.embed = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.num_hidden_layers))
        self.norm = nn.RMSNorm(sizes.hidden_size)
        self.head = _linear(sizes.hidden_size, sizes.vocab_size)
        if sizes.tie_word_embeddings:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return (batch, length, vocabulary) for (batch, length)."""
        x = self.between(self.embed(tokens))
        rates = 500000.0 ** (-torch.arange(self.pairs, device=x.device).float() / self.pairs)
        angles = torch.arange(tokens.shape[1], device=x.device).float()[:, None] * rates
        return self.head(self.norm(self._through(x, angles)))

    def _through(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        if self.loop:
            return torch_jax.scan_layers(list(self.layers), x, angles, checkpoint=self.again)
        for layer in self.layers:
            if self.again:
                x = checkpoint(layer, x, angles, use_reentrant=False)
            else:
                x = layer(x, angles)
            x = self.between(x)
        return x


def train(
    sizes: Model, axes: Mapping[str, int], batch: int, length: int, again: bool, loop: bool
) -> int:
    """Train by AdamW under autocast to bfloat16, and return the number of parameters.

    ``batch`` is the sequences of a step, over all chips, and ``length`` the tokens of each;
    ``again`` and ``loop`` are those of :class:`Llama`.
    """
    mesh = torch_jax.mesh(**{name: axes.get(name, 1) for name in AXES})
    between = functools.partial(
        torch_jax.with_sharding_constraint, spec=(_BATCH, None, None), mesh=mesh
    )
    with torch.device("meta"):  # no chip ever holds the whole model
        model = Llama(sizes, between, again, loop)
    torch_jax.shard(model, mesh, RULES)
    optimizer = torch.optim.AdamW(model.parameters())

    @torch_jax.jit
    def step(tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("jax", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    tokens = torch.zeros(batch, length + 1, dtype=torch.long)
    for _ in range(2):  # the first step makes the optimizer's state
        step(torch_jax.shard(tokens, mesh, (_BATCH,)))
    return sum(one.numel() for one in model.parameters())
