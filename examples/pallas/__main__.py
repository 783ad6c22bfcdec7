"""Train a small transformer of kernels: ``python -m examples.pallas``."""

from __future__ import annotations

import torch
from torch import nn

import torch_jax
from examples.pallas.flash_attention import attention
from examples.pallas.rms_norm import RMSNorm


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm, self.norm_mlp = RMSNorm(width), RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then the two linear layers."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        split = [t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v)]
        attended = attention(*split, causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(attended)
        return x + self.mlp(self.norm_mlp(x))


def train(steps: int = 20) -> list[float]:
    """Learn to say what stood eight places before; returns the losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(8, 32), Block(32, 2), Block(32, 2), nn.Linear(32, 8))
    model.to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = torch.randint(8, (4, 8)).repeat(1, 4).to("jax")

    @torch_jax.jit(pure=True)  # small, and it changes tensors and the optimizer alone
    def step(text: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        said = model(text)[:, :-1]
        loss = nn.functional.cross_entropy(said.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return [step(text).item() for _ in range(steps)]


if __name__ == "__main__":
    losses = train()
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
