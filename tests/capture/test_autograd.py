"""Autograd inside functions under ``torch_jax.jit``: the same gradients as the plain function."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax

SCALE = types.SimpleNamespace(of_gradients=2.0)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * SCALE.of_gradients


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to("jax")


def penalty(model: nn.Module, x: torch.Tensor) -> Any:
    """The gradient penalty of Wasserstein GANs: a gradient of a gradient."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    model.zero_grad()
    (gradient.norm(dim=1) - 1).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def functional(model: nn.Module, x: torch.Tensor) -> Any:
    """Per-sample gradients."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, row):
        return torch.func.functional_call(model, parameters, (row,)).square().sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)


def inputs(model: nn.Module, x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    model(x).square().sum().backward(inputs=[x])
    return x.grad


def unused(model: nn.Module, x: torch.Tensor) -> Any:
    wanted = [*model[2].parameters(), nn.Parameter(torch.ones(1, device="jax"))]
    return torch.autograd.grad(model(x).sum(), wanted, allow_unused=True)


def twice(model: nn.Module, x: torch.Tensor) -> Any:
    model.zero_grad()
    loss = model(x).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return [p.grad for p in model.parameters()]


def detached(model: nn.Module, x: torch.Tensor) -> Any:
    model.zero_grad()
    features = model[:2](x)
    model[2](features.detach()).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def hooked(model: nn.Module, x: torch.Tensor) -> Any:
    seen = []
    y = model[0](x)
    y.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    model.zero_grad()
    model[1:](y).sum().backward()
    return [*seen, model[0].weight.grad]


def own(model: nn.Module, x: torch.Tensor) -> Any:
    model.zero_grad()
    Scaled.apply(model(x)).sum().backward()
    return [p.grad for p in model.parameters()]


WAYS = [penalty, functional, inputs, unused, twice, detached, hooked, own]


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_the_plain_function(way: Callable):
    plain, model = network(), network()
    compiled = torch_jax.jit(lambda x: way(model, x))
    for value in (1.0, 2.0, 3.0):
        x = torch.arange(6.0, device="jax").view(2, 3) * value / 10
        ours, theirs = compiled(x), way(plain, x)
        to_cpu = lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t  # noqa: E731
        flat = [torch.utils._pytree.tree_leaves(side) for side in (ours, theirs)]
        torch.testing.assert_close(*[[*map(to_cpu, side)] for side in flat])
    assert compiled.explain().traces <= 2, compiled.explain()


def test_a_value_that_a_backward_reads_may_change():
    model = network()
    compiled = torch_jax.jit(lambda x: own(model, x)[0])
    x = torch.ones(2, 3, device="jax")
    SCALE.of_gradients = 2.0
    first = compiled(x).cpu()
    SCALE.of_gradients = 6.0
    torch.testing.assert_close(compiled(x).cpu(), first * 3)


@pytest.mark.slow
def test_losses_summed_outside_are_differentiable():
    model, plain = network(), network()
    compiled = torch_jax.jit(lambda x: F.mse_loss(model(x), torch.zeros(2, 1, device="jax")))
    reference = lambda x: F.mse_loss(plain(x), torch.zeros(2, 1, device="jax"))  # noqa: E731
    x = torch.arange(6.0, device="jax").view(2, 3)
    for _ in range(2):
        (compiled(x) + compiled(x * 2) * 3).backward()
        (reference(x) + reference(x * 2) * 3).backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad.cpu())


def test_a_parameter_written_before_the_backward_call_does_not_bend_gradients():
    # PyTorch refuses this; gradients where the forward call was are right as well.
    model, plain = network(), network()
    forward = torch_jax.jit(lambda x: model(x).square().sum())
    x = torch.ones(2, 3, device="jax")
    forward(x)
    loss = forward(x)
    with torch.no_grad():
        model[2].weight.mul_(2)
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return
    plain(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad.cpu())
