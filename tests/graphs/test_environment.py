"""Overrides, defaults and settings that change around functions under ``torch.compile``."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.compare import assert_same, to_jax
from tests.support.graphs import compiled
from tests.support.values import randn

env = torch_jax.default_env()


def on_a_thread(function, *args):
    """What it returns where no region of this thread is in force."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def negated(x, *_args, **_kwargs):
    return -x


@pytest.mark.slow
@pytest.mark.parametrize("takes", ["jax", "torch"])
def test_an_override_of_an_operator_comes_into_force_and_goes(takes):
    def function(x):
        return torch.tanh(x) + 1

    run, x = compiled(function), randn(3, requires_grad=True)
    with env.override("aten::tanh", negated, takes=takes):
        inside = [function(x), run(x)]
        gradients = [torch.autograd.grad(y.sum(), x)[0] for y in inside]
        elsewhere = on_a_thread(run, x)
    assert_same(inside[1], inside[0].detach().cpu())
    assert_same(gradients[1], gradients[0].cpu())
    for outside in (run(x), elsewhere):
        assert_same(outside, function(x).detach().cpu())


@pytest.mark.slow
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


@pytest.mark.slow
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
        result = on_a_thread(compiled(function), to_jax(x))
    assert_same(result, function(x))


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


# --- where factories put tensors ------------------------------------------------------------------


def places(x):
    """Where factories put tensors, those of PyTorch's own code too."""
    made = (torch.zeros(3), torch.arange(3), torch.tensor([1.0, 2.0]), torch.eye(2))
    return *made, torch.ones(2, device="cpu"), x + 1, torch.rand(3), torch.zeros_like(x)


def kinds(tensors):
    return [t.device.type for t in tensors]


@pytest.mark.slow
def test_factories_in_a_region_are_part_of_the_graph_and_never_stale():
    run, x = compiled(places), torch.ones(3, device="jax")
    before = kinds(run(x))
    assert before == kinds(places(x))
    for _ in range(2):
        with env:
            inside = run(x)
            assert kinds(inside) == kinds(places(x)) != before
            assert kinds(on_a_thread(run, x)) == before
            torch_jax.config.set("redirect_default", False)
            try:
                assert kinds(run(x)) == before
            finally:
                torch_jax.config.set("redirect_default", True)
        assert kinds(run(x)) == before
    env.enable_globally()
    try:
        assert kinds(run(x)) == kinds(inside)
    finally:
        env.disable_globally()


@pytest.mark.slow
def test_tasks_of_one_thread_have_their_own_graphs():
    run, x = compiled(places), torch.ones(3, device="jax")

    async def task(context, device):
        with context:
            for _ in range(3):
                assert run(x)[0].device.type == device
                await asyncio.sleep(0)

    async def both():
        await asyncio.gather(task(env, "jax"), task(contextlib.nullcontext(), "cpu"))

    asyncio.run(both())


@pytest.mark.slow
def test_devices_that_are_set_come_before_the_region():
    def made(x):
        return x + 1, torch.zeros(3)

    def sets_one(x):
        with torch.device("cpu"):
            return x + 1, torch.zeros(3)

    x = torch.ones(3, device="jax")
    run, within = (compiled(f, fullgraph=False) for f in (made, sets_one))
    with env:
        assert kinds(run(x)) == ["jax", "jax"]
        with torch.device("cpu"):
            assert kinds(run(x)) == ["jax", "cpu"]
        assert kinds(run(x)) == ["jax", "jax"]
        assert kinds(within(x)) == ["jax", "cpu"]


@pytest.mark.slow
def test_the_counts_of_a_compiled_optimizer_stay_on_the_host():
    with env:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters())
        step = compiled(optimizer.step, fullgraph=False)
        for _ in range(2):
            model(torch.ones(4, 3)).sum().backward()
            step()
        state = optimizer.state[model.weight]
        assert (state["step"].device.type, state["exp_avg"].device.type) == ("cpu", "jax")


def test_after_a_graph_break_nothing_within_an_operator_is_compiled():
    def function(x):
        with torch.device("cpu"):  # where Dynamo breaks the graph
            zeros = torch.zeros(2)
        return x[:, 1:] * 2 + torch.zeros(2, 4, device=x.device), torch.linalg.svdvals(x) + 1, zeros

    with env:
        x = torch.randn(2, 5)
        torch._dynamo.utils.counters.clear()
        *actual, zeros = compiled(function, fullgraph=False)(x)
    x = x.cpu()
    assert_same(actual, [x[:, 1:] * 2, torch.linalg.svdvals(x) + 1], strides=False, scale=5)
    assert zeros.device.type == "cpu"
    assert torch._dynamo.utils.counters["frames"]["total"] <= 2  # the function, and what is left
