"""Numbers that a jitted function counts up: no trace hangs on their values."""

from __future__ import annotations

import types

import pytest
import torch

import torch_jax

steps_done = 0


class Trainer:
    """Counts in all the ways that a training loop does."""

    def __init__(self) -> None:
        self.step, self.seen, self.left = 0, 0, 100
        self.stats = types.SimpleNamespace(calls=0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """One step."""
        global steps_done
        self.step += 1
        self.seen += x.shape[0]
        self.left -= 1
        self.stats.calls += 2
        self.stats.calls += 1
        steps_done += 1
        return x * 2


def traces(function) -> int:
    return torch_jax.explain(function).traces


def test_counters_go_up_and_nothing_is_traced_again():
    global steps_done
    steps_done = 5
    trainer = Trainer()
    step = torch_jax.jit(trainer.__call__)
    for index in range(1, 6):
        step(torch.ones(4, device="jax"))
        expected = (index, 4 * index, 100 - index, 3 * index, 5 + index)
        found = trainer.step, trainer.seen, trainer.left, trainer.stats.calls, steps_done
        assert found == expected
    assert traces(step) == 1


def test_a_module_counts():
    class Model(torch.nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = torch_jax.jit(Model(3, 2).to("jax"))
    for index in range(1, 6):
        model(torch.ones(4, 3, device="jax"))
        assert model.calls == index
    assert traces(model) <= 2  # the first call makes the attribute


def test_a_variable_of_a_closure():
    count = 0

    @torch_jax.jit
    def step(x):
        nonlocal count
        count += 1
        return x + 1

    for index in range(1, 6):
        step(torch.ones(2, device="jax"))
        assert count == index
    assert traces(step) == 1


def test_it_may_be_set_between_calls():
    trainer = Trainer()
    step = torch_jax.jit(trainer.__call__)
    step(torch.ones(4, device="jax"))
    trainer.step = 40
    step(torch.ones(4, device="jax"))
    assert trainer.step == 41
    assert traces(step) == 1


@pytest.mark.parametrize("value", [1.5, True])
def test_it_may_be_another_kind_of_number(value):
    trainer = Trainer()
    step = torch_jax.jit(trainer.__call__)
    step(torch.ones(4, device="jax"))
    trainer.step = value
    step(torch.ones(4, device="jax"))
    assert trainer.step == value + 1
    assert traces(step) == 2


def test_verified_calls_count_once():
    trainer = Trainer()
    step = torch_jax.jit(trainer.__call__, verify=2)
    for index in range(1, 5):
        step(torch.ones(4, device="jax"))
        assert trainer.step == index


def test_a_failed_trace_does_not_count():
    trainer = Trainer()

    @torch_jax.jit
    def step(x):
        trainer(x)
        return x.sum().item()

    with pytest.raises(torch_jax.DataDependentError):
        step(torch.ones(4, device="jax"))
    assert trainer.step == 0
