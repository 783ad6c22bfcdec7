"""Whole numbers that change: their arithmetic is done anew, and what it decides is guarded."""

from __future__ import annotations

import pytest
import torch

import torch_jax


class Trainer:
    """Counts its steps, and looks at the count."""

    def __init__(self) -> None:
        self.step, self.kept = 0, None


def _every_other(trainer, x, i):
    trainer.step += 1
    return x * 2 if trainer.step % 2 == 0 else x


def _decays(trainer, x, i):
    trainer.step += 1
    return x * min(0.9, (1 + trainer.step) / (10 + trainer.step))


def _computes(trainer, x, i):
    trainer.step += 2
    return x * (-trainer.step // 3 + i**2 - abs(trainer.step - i) % 5 + 0.5)


def _keeps(trainer, x, i):
    trainer.kept = trainer.step + i
    trainer.step = i
    return x, trainer.kept, {"i": i}


@pytest.mark.parametrize(
    ("function", "traces"), [(_every_other, 3), (_decays, 3), (_computes, 2), (_keeps, 3)]
)
def test_few_traces_are_made(function, traces):
    trainer = Trainer()
    compiled = torch_jax.jit(lambda x, i: function(trainer, x, i))
    for i in range(1, 12):
        compiled(torch.ones(3, device="jax"), i)
    assert compiled.explain().traces <= traces


@pytest.mark.slow
def test_gradients_are_accumulated_as_the_count_says():
    def train(device, wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        trainer = Trainer()

        def step(x):
            (model(x) ** 2).mean().backward()
            trainer.step += 1
            if trainer.step % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()

        step = wrap(step)
        for index in range(12):
            step(torch.full((4, 3), 1.0 + index).to(device))
        return [p.detach().cpu() for p in model.parameters()], step

    expected, _ = train("cpu", lambda f: f)
    actual, step = train("jax", torch_jax.jit)
    torch.testing.assert_close(actual, expected)
    assert step.explain().traces <= 5
