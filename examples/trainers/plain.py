"""A recipe as torchtune has them: a plain loop, with accumulation, clipping, a schedule."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import torch_jax
from examples.trainers import data


def main(device: str, whole_step: bool = False, steps: int = 4) -> list[float]:
    """Losses of so many steps of two batches each."""
    model = data.llama().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)

    def step(batches: list[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros((), device=device)
        for ids in batches:
            logits = model(input_ids=ids).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) / len(batches)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return total

    if whole_step:
        step = torch_jax.jit(step)
    loader = DataLoader([piece["input_ids"] for piece in data.tokens(steps * 16)], 8)
    rows = [ids.to(device) for ids in loader]
    return [step(rows[i : i + 2]).item() for i in range(0, len(rows), 2)]
