"""Given in docs/compile.md."""

import jax
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.LayerNorm(4)).to("jax")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 8, device="jax")
array, batch = jax.numpy.ones((4, 8)), jax.numpy.ones((3, 4, 8))


def Model() -> torch.nn.Module:
    """The model, which is on the device already."""
    return model
