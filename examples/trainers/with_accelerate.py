"""Accelerate: it chooses the device; nothing in the program names one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState

import torch_jax
from examples.trainers import data


def main(
    device: str, whole_step: bool = False, steps: int = 6, mixed_precision: str = "no"
) -> list[float]:
    """Losses of so many batches."""
    AcceleratorState._reset_state(True)  # a process chooses once; this one runs several programs
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision=mixed_precision)
    assert accelerator.device.type == device
    model = data.classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, data.batches(steps))

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    if whole_step:
        step = torch_jax.jit(step)
    return [accelerator.gather(step(*batch)).mean().item() for batch in loader]
