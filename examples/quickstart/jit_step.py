"""The same training step as one XLA program: forward, backward, clipping, optimizer, scheduler.

The step is small and pure: it reads and writes tensors and the optimizer's numbers, nothing else.
"""

import torch

import torch_jax

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
model = model.to("jax")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 101)


@torch_jax.jit(pure=True)  # without it Python runs at each call
def step(points: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(points), targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    return loss


points = torch.randn(256, 2, device="jax")
targets = points.prod(dim=1, keepdim=True)
for number in range(101):
    loss = step(points, targets)
    if number % 50 == 0:
        print(f"step {number}: loss {loss.item():.4f}, rate {scheduler.get_last_lr()[0]:.4f}")
print(step.explain())
