"""Training loops in lazy mode: what eager ones learn, no compilation after the third step."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_jax
from tests.support.compare import assert_same
from tests.support.lazily import counted
from torch_jax.core.active import ACTIVE
from torch_jax.recorded.path import State

STEPS = 9


def network(device: str, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(dropout), nn.Linear(8, 3)
    ).to(device)


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "adamw_plain": lambda ps: torch.optim.AdamW(ps, lr=1e-2, foreach=False),
    "adam_amsgrad": lambda ps: torch.optim.Adam(ps, lr=1e-2, amsgrad=True),
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=True),
    "sgd_plain": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, foreach=False),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-2),
}


def train(device: str, name: str, steps: int = STEPS) -> nn.Module:
    """With a schedule, accumulation over two batches, and clipped gradients."""
    model = network(device)
    optimizer = OPTIMIZERS[name](model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    numbers = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for _ in range(2):
            x = torch.randn(4, 6, generator=numbers).to(device)
            y = torch.randint(3, (4,), generator=numbers).to(device)
            (F.cross_entropy(model(x), y) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        torch_jax.sync()
    return model


QUICK = ("adamw", "sgd_plain")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in OPTIMIZERS],
)
def test_optimizers(name):
    expected = list(train("cpu", name).state_dict().values())
    with torch_jax.lazy(), counted() as first:
        model = train("jax", name)
    assert_same(list(model.state_dict().values()), expected, scale=50)
    assert first.compiles <= 2 and first.early == 0 and first.graphs == STEPS


@pytest.mark.slow
def test_dropout_is_that_of_eager_mode():
    def run() -> tuple[list[torch.Tensor], int]:
        model = network("jax", dropout=0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(5)
        with counted() as did:
            for n in range(STEPS):
                optimizer.zero_grad()
                model(torch.full((4, 6), n / 10).to("jax")).square().mean().backward()
                optimizer.step()
                torch_jax.sync()
        return [p.detach().cpu() for p in model.parameters()], did.compiles

    expected, _ = run()
    with torch_jax.lazy():
        actual, compiles = run()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert compiles == 1


@pytest.mark.slow
def test_autocast_and_a_scaler():
    def run(device: str) -> list[torch.Tensor]:
        model = network(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device)
        for n in range(4):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = model(torch.full((4, 6), n / 10).to(device)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            torch_jax.sync()
        return [p.detach().cpu() for p in model.parameters()]

    expected = run("jax")
    with torch_jax.lazy():
        actual = run("jax")
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_nothing_grows_over_a_thousand_steps():
    model = network("jax", dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)

    def steps(count: int) -> None:
        for n in range(count):
            optimizer.zero_grad()
            x = torch.full((4, 6), n / 10).to("jax")
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            torch_jax.sync()
            if n % 100 == 0:
                loss.item()

    with torch_jax.lazy():
        tracemalloc.start()
        steps(310)  # what there is from before is made anew
        gc.collect()
        states, before = State.count, tracemalloc.get_traced_memory()[0]
        with counted() as did:
            steps(1000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert did.compiles == 0 and State.count == states
    assert grown < 50_000, grown
    assert ACTIVE.recorder is None
