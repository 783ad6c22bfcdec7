"""Given in docs/cuda-scripts.md."""

import torch
from torch import nn

import torch_jax  # noqa: F401

device = torch.device("jax")
model = nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(4, 8), torch.randn(4, 4)) for _ in range(3)]
running = 0.0
