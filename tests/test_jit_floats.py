"""Float arguments that change become inputs of the program by themselves."""

from __future__ import annotations

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
