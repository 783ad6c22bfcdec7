"""Floats that change become inputs of the program by themselves."""

from __future__ import annotations

import functools
import math
import types

import pytest
import torch

import torch_jax


def _scaled(x, scale):
    return x * scale + 1


def _branches(x, scale):
    return x * scale if scale > 0.25 else x - scale


def _in_a_dict(x, scale):
    return {"result": x / (1 + scale), "scale": scale}


def _needs_the_value(x, scale):
    return x * math.exp(scale)


def _as_a_rate(x, scale):
    return torch.nn.functional.leaky_relu(x - 2, scale)


def _tells_floats(x, scale):
    return x * scale if isinstance(scale, float) else x


def _tells_floats_by_type(x, scale):
    return x * scale if type(scale) in (float, str) else x


def _as_a_size(x, scale):
    return x.new_zeros(int(scale * 10)) + scale


def _catches_errors(x, scale):
    try:
        return x * {0.5: 3.0}.get(scale, scale)
    except TypeError:
        return x


FUNCTIONS = (
    _scaled, _branches, _in_a_dict, _needs_the_value, _as_a_rate, _tells_floats,
    _tells_floats_by_type, _as_a_size, _catches_errors,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_values_are_never_stale(function):
    compiled = torch_jax.jit(function)
    x = torch.ones(3)
    for scale in (0.1, 0.5, 0.3, 0.1, 0.7, float("nan"), float("inf")):
        expected, error = _outcome(function, x, scale)
        actual, found = _outcome(compiled, x.to("jax"), scale)
        assert type(found) is type(error)
        if error is None:
            torch.testing.assert_close(_to_cpu(actual), expected, equal_nan=True)


def _outcome(function, *args):
    try:
        return function(*args), None
    except Exception as error:
        return None, error


def _to_cpu(value):
    if isinstance(value, dict):
        return {k: _to_cpu(v) for k, v in value.items()}
    return value.cpu() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("function", [_scaled, _in_a_dict])
def test_the_second_value_is_the_last_that_is_traced(function):
    compiled = torch_jax.jit(function)
    x = torch.ones(3, device="jax")
    for index in range(6):
        compiled(x, 0.1 * index)
    assert compiled.explain().traces == 2
    assert "an input of the program from now on" in str(compiled.explain())


def test_two_floats_and_gradients():
    compiled = torch_jax.jit(lambda x, a, b: ((x * a) ** 2 * b).sum())
    for a, b in ((0.5, 2.0), (0.25, 2.0), (0.75, 3.0), (0.1, 4.0)):
        x = torch.ones(3, device="jax", requires_grad=True)
        compiled(x, a, b).backward()
        torch.testing.assert_close(x.grad.cpu(), torch.full((3,), 2 * a * a * b))
    assert compiled.explain().traces == 3


def test_an_effect_takes_the_value_of_its_call():
    trainer = types.SimpleNamespace(scale=0.0, scales=[], known={})

    @torch_jax.jit
    def step(x, scale):
        trainer.scale = scale
        trainer.scales.append(scale)
        trainer.known["scale"] = scale
        return x * scale

    for scale in (0.5, 0.25, 0.125):
        assert step(torch.ones(2, device="jax"), scale).tolist() == [scale] * 2
        found = [trainer.scale, trainer.scales[-1], trainer.known["scale"]]
        assert found == [scale] * 3
        assert {type(number) for number in found} == {float}


def test_a_function_that_tells_floats_is_traced_for_each():
    compiled = torch_jax.jit(_tells_floats)
    for scale in (0.5, 0.25, 0.125):
        compiled(torch.ones(2, device="jax"), scale)
    assert compiled.explain().traces == 3


# --- floats in attributes, globals and closures ---------------------------------------------------


class Annealed:
    """A trainer whose weights of losses change, and who keeps what it used."""

    def __init__(self) -> None:
        self.kl, self.temperature, self.kept, self.log = 0.1, 1.0, None, []


def _weighted(trainer, x):
    return x * trainer.kl / trainer.temperature


def _updates_its_own(trainer, x):
    trainer.kl *= 0.5
    return x * trainer.kl


def _copies(trainer, x):
    trainer.kept = trainer.kl + trainer.temperature
    return x * trainer.kept


def _compares(trainer, x):
    return x * trainer.kl if trainer.kl < 0.4 else -x


def _fills(trainer, x):
    return torch.full_like(x, trainer.kl).add_(x, alpha=trainer.temperature)


def _asks_for_the_class(trainer, x):
    return x * trainer.kl if isinstance(trainer.kl, float) else x


def _takes_a_root(trainer, x):
    return x * math.sqrt(trainer.kl)


def _keeps_it_in_an_object(trainer, x):
    trainer.kept = functools.partial(torch.mul, other=trainer.kl)
    return x * trainer.kl


PLACES = (
    _weighted, _updates_its_own, _copies, _compares, _fills, _asks_for_the_class, _takes_a_root,
    _keeps_it_in_an_object,
)  # fmt: skip


@pytest.mark.parametrize("function", PLACES, ids=lambda f: f.__name__)
def test_attributes_are_never_stale(function):
    plain, trainer = Annealed(), Annealed()
    compiled = torch_jax.jit(lambda x: function(trainer, x))
    for kl, temperature in ((0.1, 1.0), (0.3, 1.0), (0.5, 2.0), (0.25, 4.0), (0.1, 8.0)):
        for one in (plain, trainer):
            one.kl, one.temperature = kl, temperature
        expected = function(plain, torch.ones(3))
        actual = compiled(torch.ones(3, device="jax"))
        torch.testing.assert_close(actual.cpu(), expected)
        for name in ("kl", "temperature", "kept"):
            value = getattr(trainer, name)
            if not isinstance(value, functools.partial):
                assert value == getattr(plain, name)
                assert type(value) in (float, type(None))


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


def test_a_float_that_becomes_something_else_is_traced_again():
    trainer = Annealed()
    compiled = torch_jax.jit(lambda x: _weighted(trainer, x))
    for kl in (0.1, 0.2, 3, torch.full((3,), 4.0, device="jax"), 0.5):
        trainer.kl = kl
        expected = kl.tolist() if isinstance(kl, torch.Tensor) else [float(kl)] * 3
        torch.testing.assert_close(compiled(torch.ones(3, device="jax")).tolist(), expected)


def test_an_error_leaves_the_float_where_it_was():
    trainer = Annealed()

    @torch_jax.jit
    def step(x, fail):
        trainer.log.append(x * trainer.kl)
        if fail:
            raise KeyError(fail)
        return x * trainer.kl

    x = torch.ones(3, device="jax")
    step(x, "")
    trainer.kl = 0.2
    step(x, "")
    trainer.kl = 0.3
    with pytest.raises(KeyError):
        step(x, "no")
    assert (trainer.kl, type(trainer.kl), len(trainer.log)) == (0.3, float, 2)


def test_an_object_that_would_outlive_its_trace_is_refused():
    trainer = Annealed()
    compiled = torch_jax.jit(lambda x: _keeps_it_in_an_object(trainer, x))
    with pytest.raises(torch_jax.NotTraceableError, match="gives out a new partial"):
        compiled(torch.ones(3, device="jax"))
