"""nn.DataParallel around a model, saved through .module."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
if torch.cuda.is_available():
    model = nn.DataParallel(model, device_ids=[0]).cuda()
    torch.cuda.set_device(0)
else:
    model = nn.DataParallel(model)
model.to(device)
optimizer = torch.optim.SGD(model.module.parameters(), lr=0.1)
x = torch.randn(6, 4).to(device)
for _ in range(2):
    loss = model(x).square().mean() + model(input=x[:2]).mean()
    optimizer.zero_grad()
    loss.mean().backward()
    optimizer.step()
    print(f"{loss.item():.4f}")
print(sorted(model.module.state_dict()) == sorted(n[7:] for n in model.state_dict()))
print(f"{model.module(x).sum().item():.4f}")
