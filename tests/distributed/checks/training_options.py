"""The options of ``DistributedDataParallel``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from tests.distributed.checks.training import train


def ddp_with_views_of_buckets(device: str) -> Any:
    return train(device, gradient_as_bucket_view=True)


def ddp_that_is_told_its_device(device: str) -> Any:
    own = {"device_ids": [dist.get_rank()], "output_device": dist.get_rank()}
    return train(device, **(own if device == "jax" else {}))


def ddp_with_a_static_graph(device: str) -> Any:
    return train(device, static_graph=True)


def ddp_with_compressed_gradients(device: str) -> Any:
    def hook(model: Any) -> None:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)

    # halves of sums that differ in the last place may differ in theirs
    return [value.float().round(decimals=3) for value in train(device, hook=hook)]


def batch_norm_over_all_processes(device: str) -> Any:
    """On the CPU, where there is none, one process has the whole batch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()).to(device)
    model: Any = net
    if device == "jax":
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
        model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for at in range(3):
        x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(at)).to(device)
        if device == "jax":
            x = x.chunk(2)[dist.get_rank()]
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(net.state_dict().values())


def ddp_with_powersgd(device: str) -> Any:
    def hook(model: Any) -> None:
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.1)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return train(device, hook=hook)
