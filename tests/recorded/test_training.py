"""Ordinary training steps, recorded: the numbers of eager steps, one graph a step, few compiles."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from torch_jax.recorded.metrics import COUNTS

STEPS = 6


class Recurrent(nn.Module):
    """Tokens to classes, by an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(7, 4), nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0][:, -1])


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Dropout(0.3), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip


def _attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3))


Optimizer = Callable[[Any], torch.optim.Optimizer]
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], Optimizer]] = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)),
        lambda: torch.randn(5, 4),
        lambda p: torch.optim.AdamW(p, 1e-2),
    ),
    "convolutional": (
        _convolutional,
        lambda: torch.randn(5, 2, 6, 6),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    ),
    "recurrent": (Recurrent, lambda: torch.randint(7, (5, 4)), torch.optim.RMSprop),
    "attention": (
        _attention,
        lambda: torch.randn(5, 3, 8),
        lambda p: torch.optim.Adam(
            p, eps=1e-2
        ),  # the bias of keys has gradients of rounding errors
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "perceptron")) for n in CASES]
)
def test_a_training_step(name):
    make, inputs, optimizer = CASES[name]
    torch.manual_seed(0)
    model, batch = make(), (inputs(), torch.randint(3, (5,)))
    with torch.no_grad():
        model(batch[0])  # lazy layers
    eager, _ = _train(copy.deepcopy(model), batch, optimizer, lambda step: step())
    recorded, counts = _train(copy.deepcopy(model), batch, optimizer, _recorded)
    torch.testing.assert_close(recorded, eager, rtol=1e-4, atol=1e-5)
    graphs, compiles = zip(*counts, strict=True)
    assert graphs == (1,) * STEPS
    assert compiles[2:] == (0,) * (STEPS - 2)


def _recorded(step: Callable[[], Any]) -> Any:
    with torch_jax.lazy():
        return step()


def _train(model: Any, batch: Any, make_optimizer: Optimizer, run: Callable) -> tuple[Any, list]:
    """Losses and weights on the CPU, and each step's numbers of graphs and compiles."""
    model, (x, y) = model.to("jax"), (t.to("jax") for t in batch)
    optimizer = make_optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    torch.manual_seed(1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.detach()

    losses, counts = [], []
    for _ in range(STEPS):
        before = COUNTS.graphs, COUNTS.compiles
        losses.append(run(step))
        counts.append((COUNTS.graphs - before[0], COUNTS.compiles - before[1]))
    state = [t.cpu() for t in model.state_dict().values()]
    return [*[loss.cpu() for loss in losses], *state], counts
