"""``DistributedDataParallel``, with PyTorch's defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class _Net(nn.Module):
    """Linear layers with a normalization, whose buffers are broadcast, and one seldom used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.last, self.other = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, other: bool | None = False) -> torch.Tensor:
        hidden = F.relu(self.norm(self.first(x)))
        if other is None:
            return self.last(hidden) + self.other(hidden)
        return (self.other if other else self.last)(hidden)


def _batch(device: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    inputs = torch.randn(6, 4, generator=generator)
    return inputs.to(device), torch.randint(0, 3, (6,), generator=generator).to(device)


def train(
    device: str,
    step: Callable[..., Any] | None = None,
    hook: Callable[[Any], None] | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """Two steps; the weights that come of them. The first weights differ in each process."""
    torch.manual_seed(dist.get_rank())
    net = _Net().to(device)
    model = DistributedDataParallel(net, **options)
    if hook is not None:
        hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for at in range(2):
        (step or run_step)(model, device, at)
        optimizer.step()
        optimizer.zero_grad()
    return list(net.state_dict().values())


def run_step(model: Any, device: str, at: int, other: bool | None = None) -> None:
    inputs, targets = _batch(device, at)
    F.cross_entropy(model(inputs, other), targets).backward()


def ddp_in_small_buckets(device: str) -> Any:
    return train(device, bucket_cap_mb=0.0001)


def ddp_without_sync(device: str) -> Any:
    def step(model: Any, device: str, at: int) -> None:
        with model.no_sync():
            run_step(model, device, at + 50)
        run_step(model, device, at)

    return train(device, step)


def ddp_with_unused_parameters(device: str) -> Any:
    def step(model: Any, device: str, at: int) -> None:
        run_step(model, device, at, other=at == dist.get_rank())

    return train(device, step, find_unused_parameters=True)


def ddp_with_uneven_inputs(device: str) -> Any:
    torch.manual_seed(dist.get_rank())
    net = nn.Linear(4, 3).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for at in range(1 + dist.get_rank()):
            inputs, targets = _batch(device, at)
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    return list(net.state_dict().values())


def samplers_split_the_data(device: str) -> Any:
    data = TensorDataset(torch.arange(7.0))
    sampler = DistributedSampler(data, shuffle=False)
    return [batch.to(device) * 2 for (batch,) in DataLoader(data, 2, sampler=sampler)]
