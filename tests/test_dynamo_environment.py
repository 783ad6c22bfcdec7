"""Overrides, defaults and settings that change around functions under ``torch.compile``."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.compare import assert_same, to_jax
from tests.dynamo import compiled
from tests.dynamo import fresh as fresh

env = torch_jax.default_env()


def negated(x, *_args, **_kwargs):
    return -x


@pytest.mark.parametrize("takes", ["jax", "torch"])
def test_an_override_of_an_operator_comes_into_force_and_goes(takes):
    def function(x):
        return torch.tanh(x) + 1

    run, x = compiled(function), torch.randn(3, device="jax", requires_grad=True)
    with env.override("aten::tanh", negated, takes=takes):
        inside = [function(x), run(x)]
        gradients = [torch.autograd.grad(y.sum(), x)[0] for y in inside]
        elsewhere: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: elsewhere.append(run(x)))
        thread.start(), thread.join()
    assert_same(inside[1], inside[0].detach().cpu())
    assert_same(gradients[1], gradients[0].cpu())
    for outside in (run(x), *elsewhere):
        assert_same(outside, function(x).detach().cpu())


@pytest.mark.parametrize("target", ["aten::linear", F.linear], ids=["operator", "callable"])
def test_an_override_of_what_pytorch_composes_has_its_own_gradient(target):
    def scaled(x, weight, bias=None):
        return x[:, :2] * 3

    model = nn.Linear(3, 2).to("jax")
    run, x = compiled(model, fullgraph=callable(target) is False), torch.randn(4, 3)
    before, ours = model(to_jax(x)).detach().cpu(), to_jax(x).requires_grad_()
    assert_same(run(ours), before)
    for _ in range(2):
        with env.override(target, scaled, takes="jax"):
            result = run(ours)
            (gradient,) = torch.autograd.grad(result.sum(), ours)
        assert_same(result, x[:, :2] * 3)
        assert_same(gradient, torch.tensor([3.0, 3.0, 0.0]).expand(4, 3), strides=False)
        assert_same(run(ours), before)


def test_an_override_in_force_during_the_backward_pass_alone():
    def function(x, weight):
        return (x @ weight).sum()

    run, weight = compiled(function), torch.randn(3, 2)
    gradients = []
    for override in (False, True, False):
        x = torch.ones(2, 3, device="jax", requires_grad=True)
        loss = run(x, to_jax(weight))
        if override:
            with env.override("aten::mm", lambda a, b: (a @ b) * 0):
                loss.backward()
        else:
            loss.backward()
        gradients.append(x.grad)
    expected = weight.sum(1).expand(2, 3)
    assert_same(gradients, [expected, expected * 0, expected], strides=False)


def test_permanent_overrides_and_operators_that_are_registered_later():
    def function(x):
        return torch.special.bessel_j0(x)

    run, x = compiled(function), torch.randn(3)
    assert_same(run(to_jax(x)), function(x))
    torch_jax.register_op("special_bessel_j0")(negated)
    assert_same(run(to_jax(x)), -x)
    env.remove_override("special_bessel_j0")
    assert_same(run(to_jax(x)), function(x))


def test_a_callable_that_is_overridden_elsewhere_breaks_no_graph():
    def function(x):
        return F.gelu(x) + F.silu(x)

    x = torch.randn(3)
    with env.override(F.gelu, negated):
        results: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: results.append(compiled(function)(to_jax(x))))
        thread.start(), thread.join()
    assert_same(results, [function(x)])


def test_a_setting_that_changes():
    def function(table, at):
        return table[at]

    table, at = torch.randn(3), torch.tensor([5])
    run = compiled(function)
    checks = torch_jax.config.get("check_indices")
    try:
        torch_jax.config.set("check_indices", "never")
        assert run(to_jax(table), to_jax(at)).isnan().all()
        torch_jax.config.set("check_indices", "always")
        with pytest.raises(IndexError):
            run(to_jax(table), to_jax(at))
    finally:
        torch_jax.config.set("check_indices", checks)
