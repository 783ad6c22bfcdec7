"""A loop with GradScaler and autocast, old names and new, clipping, and a skipped step."""

import torch
from torch import nn

torch.manual_seed(0)
use_amp = torch.cuda.is_available()
device = "cuda" if use_amp else "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
x, y = torch.randn(12, 8), torch.randn(12, 1)
if use_amp:
    model.cuda()
    x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler(enabled=use_amp)
for step in range(4):
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.amp.autocast(enabled=use_amp, dtype=torch.bfloat16):
        output = model(x)
        assert output.dtype is (torch.bfloat16 if use_amp else torch.float32)
        loss = nn.functional.mse_loss(output.float(), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
    print(step, f"{loss.item():.2f}")
assert scaler.is_enabled() == use_amp
with torch.autocast(device_type=device, dtype=torch.bfloat16), torch.no_grad():
    print(torch.is_autocast_enabled(device), model(x).dtype)


class Cubed(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type=device, cast_inputs=torch.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.amp.custom_bwd(device_type=device)
    def backward(ctx, grad):
        return grad * 3 * ctx.saved_tensors[0] ** 2


x = torch.full((3,), 2.0, device=device, dtype=torch.float16, requires_grad=True)
with torch.autocast(device_type=device):
    cubed = Cubed.apply(x)
cubed.sum().backward()
print(cubed.dtype, cubed.tolist(), x.grad.tolist())
