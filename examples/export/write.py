"""Trains a small classifier with PyTorch on device ``jax`` and exports it.

``python -m examples.export.write model.zip`` writes the model, and beside it a batch with what the
model makes of it, ``model.zip.npz``, which ``run.py`` compares with its own results.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import nn

import torch_jax


def trained() -> nn.Module:
    """A network that has learned which of two rings a point is in."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 2)).to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)

    @torch_jax.jit(pure=True)  # small, and it changes tensors and the optimizer alone
    def step(points: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        labels = (points.norm(dim=1) > 1).long()
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(100):
        loss = step(torch.randn(256, 2, device="jax"))
    print(f"loss {loss.item():.3f}")
    return model.eval()


def main(path: str) -> None:
    """Train, export, and write down what the model says of a batch."""
    model, points = trained(), torch.randn(8, 2, device="jax")
    exported = torch_jax.export(model, (points,))
    exported.save(path, vjp_order=1)
    with torch.no_grad():
        np.savez(f"{path}.npz", points=points.cpu(), logits=model(points).cpu())
    print(exported)


if __name__ == "__main__":
    main(sys.argv[1])
