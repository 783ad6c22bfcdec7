"""Eagerly: a device as any other. No import of torch_jax, nothing to switch on."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
model = model.to("jax")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

points = torch.randn(256, 2, device="jax")
targets = points.prod(dim=1, keepdim=True)

for number in range(101):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(points), targets)
    loss.backward()
    optimizer.step()
    if number % 50 == 0:
        print(f"step {number}: loss {loss.item():.4f}")

row = points[0]  # a view: what is written through it is written to points
row.fill_(3.0)
print(points[0].tolist(), points.device)
