"""The idioms of scripts for ``torchrun``, which call each process's device by its number.

Groups are made and ended several times, and each trains by DDP, FSDP2 and tensor parallelism; what
the device gives is compared with sums on the CPU.
"""

from __future__ import annotations

import os
import time
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import torch_jax

warnings.simplefilter("ignore", FutureWarning)
local = int(os.environ["LOCAL_RANK"])


def accelerator() -> torch.device:
    """Begin as the examples of PyTorch 2.6 and newer do."""
    assert torch.accelerator.is_available() and torch.accelerator.device_count() >= 2
    torch.accelerator.set_device_index(local)
    device = torch.device("jax", torch.accelerator.current_device_index())
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device)
    return device


def cuda() -> torch.device:
    """Begin as scripts for CUDA do."""
    assert torch.cuda.is_available() and torch.cuda.device_count() >= 2
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)
    dist.init_process_group("nccl", device_id=device)
    return device


def model() -> nn.Module:
    """A model with the same weights in each process."""
    torch.manual_seed(3)
    with torch.device("cpu"):
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What one process trains on."""
    with torch.device("cpu"):
        return torch.arange(12.0).view(3, 4) / 12 + rank, torch.tensor([0, 1, 0])


def expected(ranks: list[int]) -> list[float]:
    """This process's losses of three steps on the batches of several, by the CPU."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        of_ranks = [F.cross_entropy(net(x), y) for x, y in map(batch, ranks)]
        (sum(of_ranks) / len(of_ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(of_ranks[ranks.index(local) if len(ranks) > 1 else 0].item())
    return losses


def trained(net: nn.Module, device: torch.device, rank: int) -> list[float]:
    """The same of a module on a device."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = (one.to(device) for one in batch(rank))
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def check(device: torch.device) -> None:
    """Train in the three ways."""
    together, alone = expected([0, 1]), expected([0])
    net = DistributedDataParallel(model().to(device), device_ids=[local], output_device=local)
    torch.testing.assert_close(trained(net, device, local), together)
    net = fully_shard(model().to(device))
    torch.testing.assert_close(trained(net, device, local), together)
    mesh = init_device_mesh(device.type, (2,))
    net = model().to(device)
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(trained(net, device, 0), alone)


begun = time.monotonic()
for at in range(4):
    if at == 2:
        torch_jax.config.set("redirect_cuda", True)
        torch_jax.default_env().enable_globally()
    device = accelerator() if at < 2 else cuda()
    if at == 0 and local == 0:  # one process alone uses the device first
        assert torch.ones(2, device=device).sum().item() == 2
    assert device.index == torch.accelerator.current_device_index() == local
    if at in (0, 2):
        check(device)
    half = dist.new_group([1, 0])
    total = torch.full((2,), float(local + at), device=device)
    dist.all_reduce(total)
    dist.all_reduce(total, group=half)
    assert total.tolist() == [4.0 * at + 2] * 2, total
    dist.destroy_process_group()
assert time.monotonic() - begun < 90
