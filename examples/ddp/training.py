"""An ordinary script of ``DistributedDataParallel``: it does not know which device it runs on."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, CLASSES = 20, 4


def data(count: int, seed: int) -> TensorDataset:
    """Points around centers, a class each."""
    centers = 2 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return TensorDataset(
        centers[labels] + 2 * torch.randn(count, FEATURES, generator=generator), labels
    )


def build() -> nn.Module:
    """A small classifier; its normalization has buffers, which DDP broadcasts."""
    return nn.Sequential(
        nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES)
    )


def mean_of_ranks(value: torch.Tensor) -> float:
    """A number of each rank, averaged over all of them."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train_epoch(
    model: DistributedDataParallel,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    device: str,
    accumulate: int,
) -> float:
    """One pass over this rank's share of the data; the mean loss of all ranks."""
    losses = []
    for number, (points, labels) in enumerate(loader, start=1):
        steps = number % accumulate == 0 or number == len(loader)
        with nullcontext() if steps else model.no_sync():  # gradients add up, and are not sent
            loss = F.cross_entropy(model(points.to(device)), labels.to(device))
            (loss / accumulate).backward()
        if steps:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return mean_of_ranks(torch.stack(losses).mean())


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader, device: str) -> float:
    """The share of points that all ranks together have right."""
    model.eval()
    found = torch.zeros(2, device=device)  # right ones, all
    for points, labels in loader:
        right = model(points.to(device)).argmax(1) == labels.to(device)
        found += torch.stack([right.sum(), torch.ones_like(right).sum()])
    model.train()
    dist.all_reduce(found)
    return (found[0] / found[1]).item()


def main(options: argparse.Namespace) -> None:
    """One rank: train, and say how it goes; rank 0 writes a checkpoint, and all read it."""
    dist.init_process_group(options.backend)
    rank, device = dist.get_rank(), options.device
    torch.manual_seed(0)

    training, testing = data(512, seed=1), data(128, seed=2)
    sampler = DistributedSampler(training, shuffle=True)
    loader = DataLoader(training, batch_size=32, sampler=sampler)
    test_loader = DataLoader(testing, 32, sampler=DistributedSampler(testing, shuffle=False))

    model = DistributedDataParallel(build().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, device, options.accumulate)
        share = accuracy(model, test_loader, device)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.5f}, accuracy {share:.3f}", flush=True)

    checkpoint = Path(options.checkpoint)
    if rank == 0:
        torch.save(model.module.state_dict(), checkpoint)
    dist.barrier()
    restored = build().to(device)
    restored.load_state_dict(torch.load(checkpoint, map_location=device))
    share = accuracy(restored, test_loader, device)
    if rank == 0:
        print(f"restored: accuracy {share:.3f}", flush=True)
    dist.destroy_process_group()


def rank(_number: int, options: argparse.Namespace) -> None:
    """One of the processes that ``torch_jax.spawn`` starts, which has set what torchrun would."""
    main(options)
