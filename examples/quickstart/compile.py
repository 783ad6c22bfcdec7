"""torch.compile with backend "jax": each graph of Dynamo's is one XLA executable."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
model = model.to("jax")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

compiled = torch.compile(model, backend="jax")
update = torch.compile(optimizer.step, backend="jax")

points = torch.randn(256, 2, device="jax")
targets = points.prod(dim=1, keepdim=True)

for number in range(101):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(compiled(points), targets)
    loss.backward()
    update()
    if number % 50 == 0:
        print(f"step {number}: loss {loss.item():.4f}")

with torch.no_grad():
    difference = (compiled(points) - model(points)).abs().max().item()
print(f"compiled and eager differ by less than 1e-6: {difference < 1e-6}")
