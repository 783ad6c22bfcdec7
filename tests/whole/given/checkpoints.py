"""Given in docs/checkpoints.md."""

import os
from types import SimpleNamespace

import torch

import torch_jax

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="0")
config = SimpleNamespace(width=8)


def Llama(config: SimpleNamespace) -> torch.nn.Module:
    """Much smaller than one."""
    return torch.nn.Sequential(torch.nn.Linear(config.width, config.width))


model = Llama(config).to("jax")
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(2, 8, device="jax")).sum().backward()
optimizer.step()
step, mesh, rules = 1, torch_jax.mesh(data=1), {"*": ()}
