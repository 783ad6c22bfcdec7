"""Given in docs/lazy.md."""

import torch
import torch.nn.functional as F  # noqa: F401

model = torch.nn.Linear(8, 4).to("jax")
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(4, 8), torch.randn(4, 4)) for _ in range(3)]
