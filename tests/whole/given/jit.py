"""Given in docs/jit.md."""

import torch

x, y = torch.randn(4, 8, device="jax"), torch.tensor([0, 1, 2, 3], device="jax")
loader = [(torch.randn(4, 8), torch.randn(4, 4)) for _ in range(3)]


def Model() -> torch.nn.Module:
    """A small classifier."""
    return torch.nn.Linear(8, 4)
