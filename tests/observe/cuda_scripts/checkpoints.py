"""Files that are saved on a card and loaded on one, by every map_location that people write."""

import os
import tempfile

import torch
from torch import nn

torch.manual_seed(0)
cuda = torch.cuda.is_available()
model = nn.Linear(3, 2)
x = torch.ones(1, 3)
if cuda:
    model, x = model.cuda(0), x.cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
model(x).sum().backward()
optimizer.step()
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "checkpoint.pth")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(state, path)
    device = "cuda:0" if cuda else "cpu"
    locations = [device, torch.device(device), {"cpu": device}, None, "cpu"]
    if cuda:
        locations += [lambda storage, loc: storage.cuda(0), {"cuda:0": "cuda:0"}]
    found = set()
    for location in locations:
        loaded = torch.load(path, map_location=location, weights_only=True)
        weight = loaded["model"]["weight"]
        assert weight.is_cuda == (cuda and location != "cpu"), location
        found.add((loaded["epoch"], f"{weight.sum().item():.3f}"))
    print(*found)
    other = nn.Linear(3, 2)
    other.load_state_dict(torch.load(path, map_location="cpu")["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    print(torch.equal(other.weight.data, model.weight.data.cpu()))
