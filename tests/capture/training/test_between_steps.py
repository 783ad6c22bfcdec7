"""Users change an optimizer between steps of a pure function: each change has its effect."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_jax

Model = nn.Sequential
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, capturable=True),
}


def load(model: Model, optimizer: Any, saved: Any) -> None:
    optimizer.load_state_dict(saved)


def clear(model: Model, optimizer: Any, saved: Any) -> None:
    optimizer.state.clear()


def add_a_group(model: Model, optimizer: Any, saved: Any) -> None:
    optimizer.add_param_group({"params": list(model[1].parameters())})


def add_parameters(model: Model, optimizer: Any, saved: Any) -> None:
    optimizer.param_groups[0]["params"].extend(model[1].parameters())


def freeze(model: Model, optimizer: Any, saved: Any) -> None:
    model[0].weight.requires_grad_(False)


def decay(model: Model, optimizer: Any, saved: Any) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.3


def _losses(kind: str, change: Callable[..., None], runs: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).to("jax")
    optimizer = OPTIMIZERS[kind](model[0].parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run, losses, saved = runs(step), [], {}
    for number in range(8):
        losses.append(run(torch.ones(4, 3, device="jax")).item())
        if number == 2:
            saved = copy.deepcopy(optimizer.state_dict())
        if number == 4:
            change(model, optimizer, saved)
    return losses, run


@pytest.mark.filterwarnings("error:.*(is not pure|cannot skip its Python)")
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("change", [load, clear, add_a_group, add_parameters, freeze, decay])
def test_a_pure_step_sees_it(change, kind):
    expected, _ = _losses(kind, change, lambda step: step)
    losses, run = _losses(kind, change, torch_jax.jit(pure=True))
    assert losses == pytest.approx(expected, rel=1e-4)
    assert run.explain().observed in (1, 2), run.explain()
