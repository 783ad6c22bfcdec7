"""Pipelines of PyTorch's, a stage or two in each process: unmodified, and eager."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
    SplitPoint,
    pipeline,
)

_PARTS = 4  # microbatches


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(F.gelu(self.inner(x)))


def _group(device: str) -> Any:
    return None if device == "jax" else dist.new_group([0, 1], backend="gloo")


def _layers(device: str, count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [_Layer().to(device) for _ in range(count)]


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


def _batch(device: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    values = torch.randn(2, 8, 6, generator=generator)
    return values[0].to(device), values[1].to(device)


def _trained(schedule: Any, device: str, layers: list[nn.Module], last: bool) -> Any:
    """Losses and weights of two steps; rank 0 gives the inputs, whoever has the last stage asks."""
    weights = [weight for layer in layers for weight in layer.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    losses: list[list[torch.Tensor]] = []
    for step in range(2):
        inputs, targets = _batch(device, step)
        losses.append([])
        given = (inputs,) if dist.get_rank() == 0 else ()
        schedule.step(*given, **({"target": targets, "losses": losses[-1]} if last else {}))
        optimizer.step()
        optimizer.zero_grad()
    return losses, weights


def _one_stage_each(device: str, kind: Any) -> Any:
    rank, layers = dist.get_rank(), _layers(device, 2)
    stage = PipelineStage(layers[rank], rank, 2, torch.device(device), group=_group(device))
    return _trained(kind(stage, _PARTS, loss_fn=_loss), device, [layers[rank]], rank == 1)


def stages_in_the_order_of_gpipe(device: str) -> Any:
    return _one_stage_each(device, ScheduleGPipe)


def stages_one_forward_one_backward(device: str) -> Any:
    return _one_stage_each(device, Schedule1F1B)


def _two_stages_each(device: str, kind: Any, own: tuple[int, int], last: bool) -> Any:
    layers, group = _layers(device, 4), _group(device)
    stages = [PipelineStage(layers[at], at, 4, torch.device(device), group=group) for at in own]
    chosen = [layers[at] for at in own]
    return _trained(kind(stages, _PARTS, loss_fn=_loss), device, chosen, last)


def stages_interleaved(device: str) -> Any:
    rank = dist.get_rank()
    return _two_stages_each(device, ScheduleInterleaved1F1B, (rank, rank + 2), rank == 1)


def stages_without_bubbles(device: str) -> Any:
    rank = dist.get_rank()
    return _two_stages_each(device, ScheduleZBVZeroBubble, (rank, 3 - rank), rank == 0)


def stages_of_a_traced_model(device: str) -> Any:
    model = nn.Sequential(*_layers(device, 2))
    rank, example = dist.get_rank(), _batch(device, 0)[0][: 8 // _PARTS]
    pipe = pipeline(model, (example,), split_spec={"1": SplitPoint.BEGINNING})
    stage = pipe.build_stage(rank, torch.device(device), group=_group(device))
    schedule = ScheduleGPipe(stage, _PARTS, loss_fn=_loss)
    return _trained(schedule, device, [stage.submod], rank == 1)
