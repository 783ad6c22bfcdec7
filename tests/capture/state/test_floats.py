"""Floats that change become inputs of the program by themselves."""

from __future__ import annotations

import functools

import pytest
import torch

import torch_jax


def _scaled(x, scale):
    return x * scale + 1


def _in_a_dict(x, scale):
    return {"result": x / (1 + scale), "scale": scale}


def _tells_floats(x, scale):
    return x * scale if isinstance(scale, float) else x


@pytest.mark.parametrize("function", [_scaled, _in_a_dict])
def test_the_second_value_is_the_last_that_is_traced(function):
    compiled = torch_jax.jit(function)
    x = torch.ones(3, device="jax")
    for index in range(6):
        compiled(x, 0.1 * index)
    assert compiled.explain().traces == 2
    assert "an input of the program from now on" in str(compiled.explain())


@pytest.mark.slow
def test_two_floats_and_gradients():
    compiled = torch_jax.jit(lambda x, a, b: ((x * a) ** 2 * b).sum())
    for a, b in ((0.5, 2.0), (0.25, 2.0), (0.75, 3.0), (0.1, 4.0)):
        x = torch.ones(3, device="jax", requires_grad=True)
        compiled(x, a, b).backward()
        torch.testing.assert_close(x.grad.cpu(), torch.full((3,), 2 * a * a * b))
    assert compiled.explain().traces == 3


def test_a_function_that_tells_floats_is_traced_for_each():
    compiled = torch_jax.jit(_tells_floats)
    for scale in (0.5, 0.25, 0.125):
        compiled(torch.ones(2, device="jax"), scale)
    assert compiled.explain().traces == 3


# --- floats in attributes, globals and closures ---------------------------------------------------


class Annealed:
    """A trainer whose weights of losses change, and who keeps what it used."""

    def __init__(self) -> None:
        self.kl, self.temperature, self.kept = 0.1, 1.0, None


def _weighted(trainer, x):
    return x * trainer.kl / trainer.temperature


def _updates_its_own(trainer, x):
    trainer.kl *= 0.5
    return x * trainer.kl


def _copies(trainer, x):
    trainer.kept = trainer.kl + trainer.temperature
    return x * trainer.kept


def _fills(trainer, x):
    return torch.full_like(x, trainer.kl).add_(x, alpha=trainer.temperature)


def _keeps_it_in_an_object(trainer, x):
    trainer.kept = functools.partial(torch.mul, other=trainer.kl)
    return x * trainer.kl


@pytest.mark.parametrize(
    ("function", "traces"), [(_weighted, 2), (_updates_its_own, 2), (_copies, 3), (_fills, 2)]
)
def test_attributes_that_change_become_inputs(function, traces):
    trainer = Annealed()
    compiled = torch_jax.jit(lambda x: function(trainer, x))
    for index in range(1, 8):
        trainer.kl, trainer.temperature = 0.1 * index, 1.0 / index
        compiled(torch.ones(3, device="jax"))
    assert compiled.explain().traces == traces


weight = 0.5


def test_a_global_and_a_variable_of_a_closure():
    global weight
    scale = 1.0

    @torch_jax.jit
    def step(x):
        return x * weight * scale

    for index in range(1, 5):
        weight, scale = 0.5 / index, 1.0 + index
        torch.testing.assert_close(
            step(torch.ones(2, device="jax")).cpu().tolist(), [weight * scale] * 2
        )
    assert step.explain().traces == 2


def test_an_object_that_would_outlive_its_trace_is_refused():
    trainer = Annealed()
    compiled = torch_jax.jit(lambda x: _keeps_it_in_an_object(trainer, x))
    with pytest.raises(torch_jax.NotTraceableError, match="gives out a new partial"):
        compiled(torch.ones(3, device="jax"))
