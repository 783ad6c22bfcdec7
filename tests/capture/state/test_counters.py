"""Numbers that a jitted function counts up: no trace hangs on their values."""

from __future__ import annotations

import copy
import dataclasses
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


def test_a_counter_that_becomes_a_tensor_is_added_to_in_place():
    trainer = Trainer()
    step = torch_jax.jit(trainer.__call__)
    step(torch.ones(4, device="jax"))
    trainer.step = tensor = torch.zeros((), device="jax")
    for _ in range(3):
        step(torch.ones(4, device="jax"))
    assert trainer.step is tensor
    assert tensor.item() == 3


def _is_read(trainer, x):
    trainer.step += 1
    return x * trainer.step


def _is_read_elsewhere(trainer, x):
    trainer.step += 1
    return _scaled(trainer, x)


def _scaled(trainer, x):
    return x * trainer.step


def _is_branched_on(trainer, x):
    trainer.step += 1
    return x if trainer.step % 2 else -x


def _is_multiplied(trainer, x):
    trainer.step *= 2
    trainer.step += 1
    return x * 2


def _starts_anew(trainer, x):
    trainer.step = 7
    trainer.step += 1
    return x * 2


def _is_read_by_text(trainer, x):
    trainer.step += 1
    return x * getattr(trainer, "step")  # noqa: B009


def _is_read_by_a_computed_text(trainer, x):
    trainer.step += 1
    return x * sum(getattr(trainer, name) for name in ("st" + "ep", "left"))


def _is_copied(trainer, x):
    trainer.step += 1
    return x, copy.copy(trainer)


def _is_in_a_dict(trainer, x):
    trainer.step += 1
    return x, dict(vars(trainer))


VALUES_ARE_READ = (
    _is_read, _is_read_elsewhere, _is_branched_on, _is_multiplied, _starts_anew, _is_read_by_text,
    _is_read_by_a_computed_text, _is_copied, _is_in_a_dict,
)  # fmt: skip


@pytest.mark.parametrize("function", VALUES_ARE_READ, ids=lambda f: f.__name__)
def test_what_hangs_on_the_value_is_never_stale(function):
    plain, trainer = Trainer(), Trainer()
    step = torch_jax.jit(lambda x: function(trainer, x))
    for _ in range(4):
        expected = function(plain, torch.ones(3))
        assert _shown(step(torch.ones(3, device="jax"))) == _shown(expected)
        assert trainer.step == plain.step


def _shown(result):
    tensor, *rest = result if isinstance(result, tuple) else (result,)
    return tensor.tolist(), [r["step"] if isinstance(r, dict) else r.step for r in rest]


@dataclasses.dataclass
class State:
    """A state that is taken apart."""

    step: int = 0
    scale: float = 2.0


def test_a_dataclass_that_is_taken_apart():
    state = State()

    @torch_jax.jit
    def step(x):
        state.step += 1
        count, scale = dataclasses.astuple(state)
        return x * count * scale

    for index in range(1, 5):
        assert step(torch.ones(2, device="jax")).tolist() == [2.0 * index] * 2


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
