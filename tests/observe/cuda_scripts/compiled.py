"""torch.compile with CUDA's mode, around attention that chooses its kernel."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_float32_matmul_precision("highest")
device = "cuda" if torch.cuda.is_available() else "cpu"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        if torch.is_autocast_enabled() or x.dtype is torch.float16:
            raise AssertionError("nobody asked for less")
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(2, 5, 8))


model = Attention().to(device)
x = torch.randn(2, 5, 8).to(device)
backend = "inductor" if device == "cuda" else "eager"
compiled = torch.compile(model, backend=backend)
loss = compiled(x).square().mean()
loss.backward()
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
    plain = model(x)
print(f"{loss.item():.4f} {plain.sum().item():.4f} {model.out.weight.grad.sum().item():.4f}")
