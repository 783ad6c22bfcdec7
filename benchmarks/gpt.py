"""A GPT's forward pass and training step, eager, beside the same model in hand-written jitted JAX.

6 layers, width 384, 6 heads, batches of 8 x 128 tokens, float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.timing import alternate, table

LAYERS, WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 6, 384, 6, 256, 8, 128
TARGET = 1.6


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, length, width]`` to the same."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Tokens to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``[batch, length]`` int64 to ``[batch, length, vocabulary]``."""
        x = self.token(tokens) + self.position.weight
        return self.head(self.norm(self.blocks(x)))


def _norm(p: dict, name: str, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _linear(p: dict, name: str, x: jax.Array) -> jax.Array:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def jax_gpt(p: dict, tokens: jax.Array) -> jax.Array:
    """The same model as a JAX author writes it, over the state dict's names."""
    x = p["token.weight"][tokens] + p["position.weight"]
    for i in range(LAYERS):
        b = f"blocks.{i}"
        qkv = _linear(p, f"{b}.qkv", _norm(p, f"{b}.norm1", x))
        q, k, v = jnp.split(qkv.reshape(*x.shape[:2], 3 * HEADS, -1), 3, axis=2)
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + _linear(p, f"{b}.out", attended.reshape(x.shape))
        hidden = jax.nn.gelu(_linear(p, f"{b}.up", _norm(p, f"{b}.norm2", x)))
        x = x + _linear(p, f"{b}.down", hidden)
    return _linear(p, "head", _norm(p, "norm", x))


def run() -> None:
    """Compare outputs once, then time forward passes."""
    torch.manual_seed(0)
    model = Gpt()
    p = {name: jnp.asarray(value.detach().numpy()) for name, value in model.state_dict().items()}
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    jax_tokens = jnp.asarray(tokens.numpy().astype("int32"))
    model, tokens = model.to("jax"), tokens.to("jax")
    bare = jax.jit(jax_gpt)
    with torch.no_grad():
        logits = model(tokens)
        difference = abs(logits.cpu().numpy() - bare(p, jax_tokens)).max()
        print(f"\nGPT logits: max difference from hand-written JAX {difference:.1e}")
        times = alternate(
            {
                "eager": lambda: _wait(model(tokens)),
                "bare": lambda: bare(p, jax_tokens).block_until_ready(),
            },
            calls=1,
            rounds=25,
        )
    row = ("forward, eager", times["eager"] * 1e3, times["bare"] * 1e3, TARGET)
    table(f"GPT, {LAYERS} layers, width {WIDTH}, batch {BATCH}x{LENGTH} (median)", [row], "ms")


def _wait(logits: torch.Tensor) -> None:
    logits.untyped_storage().array.block_until_ready()  # type: ignore[attr-defined]
