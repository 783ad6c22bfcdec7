"""Training loops in lazy mode: they learn as eager ones, and compile nothing after two steps."""

from __future__ import annotations

import copy
import gc
import tracemalloc

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import torch_jax
from tests.support.lazily import counted
from torch_jax.core.active import ACTIVE
from torch_jax.recorded.path import State

STEPS = 8


def perceptron(dropout: float = 0.0) -> nn.Module:
    more = (nn.LayerNorm(8), nn.GELU(), nn.Dropout(dropout), nn.Linear(8, 3))
    return nn.Sequential(nn.Linear(6, 8), *more)


def adamw(parameters):
    return optim.AdamW(parameters, lr=1e-2)


def sgd(parameters):
    return optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, foreach=False)


CASES = {
    "adamw": (perceptron, adamw),
    "adamw_plain": (perceptron, lambda p: optim.AdamW(p, lr=1e-2, foreach=False)),
    "adam_amsgrad": (perceptron, lambda p: optim.Adam(p, lr=1e-2, amsgrad=True)),
    "sgd": (perceptron, lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=True)),
    "sgd_plain": (perceptron, sgd),
    "rmsprop": (perceptron, lambda p: optim.RMSprop(p, lr=1e-2)),
    "dropout": (lambda: perceptron(0.5), sgd),
}


def train(model: nn.Module, make) -> list[torch.Tensor]:
    """With a schedule, accumulation over two batches, and clipped gradients."""
    torch.manual_seed(1)
    model = model.to("jax")
    optimizer, found = make(model.parameters()), []
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            x, y = torch.randn(4, 6).to("jax"), torch.randint(3, (4,)).to("jax")
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        torch_jax.sync()
        found.append(loss.detach())
    return [one.cpu() for one in (*found, *model.state_dict().values())]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_loop_is_one_graph_a_step(name):
    torch.manual_seed(0)
    model, optimizer = CASES[name][0](), CASES[name][1]
    expected = train(copy.deepcopy(model), optimizer)
    with torch_jax.lazy(), counted() as did:
        actual = train(copy.deepcopy(model), optimizer)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert did.compiles <= 2 and did.early == 0 and did.graphs == STEPS


@pytest.mark.slow
def test_nothing_grows_over_a_thousand_steps():
    model = perceptron(0.1).to("jax")
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    schedule = optim.lr_scheduler.StepLR(optimizer, 10)

    def steps(count: int) -> None:
        for n in range(count):
            optimizer.zero_grad()
            loss = model(torch.full((4, 6), n / 10).to("jax")).square().mean()
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
