"""Autograd inside functions under ``torch_jax.jit``: the same gradients as the plain function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.jitted import assert_run, both


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * 2


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


@both
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_the_plain_function(way: Callable, pure: bool):
    plain, model = network(), network()
    compiled = torch_jax.jit(lambda x: way(model, x), pure=pure)
    for value in (1.0, 2.0, 3.0, 4.0):
        x = torch.arange(6.0, device="jax").view(2, 3) * value / 10
        ours, theirs = compiled(x), way(plain, x)
        to_cpu = lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t  # noqa: E731
        flat = [torch.utils._pytree.tree_leaves(side) for side in (ours, theirs)]
        torch.testing.assert_close(*[[*map(to_cpu, side)] for side in flat])
    assert_run(compiled, pure)


@both
def test_losses_summed_outside_are_differentiable(pure):
    model, plain = network(), network()
    zeros = torch.zeros(2, 1, device="jax")
    compiled = torch_jax.jit(lambda x: F.mse_loss(model(x), zeros), pure=pure)
    x = torch.arange(6.0).view(2, 3).to("jax")
    for _ in range(3):
        (compiled(x) + compiled(x * 2) * 3).backward()
        (F.mse_loss(plain(x), zeros) + F.mse_loss(plain(x * 2), zeros) * 3).backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad.cpu())
    assert_run(compiled, pure)


@both
def test_a_parameter_written_before_the_backward_call_is_found_out(pure):
    model = network()
    forward = torch_jax.jit(lambda x: model(x).square().sum(), pure=pure)
    for _ in range(3):
        loss = forward(torch.ones(2, 3, device="jax"))
    with torch.no_grad():
        model[2].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@both
def test_a_graph_is_gone_through_once_or_kept(pure):
    model, plain = network(), network()
    forward = torch_jax.jit(lambda x: model(x).square().sum(), pure=pure)
    x = torch.ones(2, 3, device="jax")
    for _ in range(3):
        loss, wanted = forward(x), plain(x).square().sum()
        for one in (loss, wanted):
            one.backward(retain_graph=True)
            one.backward()
            with pytest.raises(RuntimeError, match="a second time"):
                one.backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad.cpu())


@both
def test_a_part_of_the_results_is_used(pure):
    """Gradients flow from some results only, and to arguments that were computed before."""
    model, plain = network(), network()
    forward = torch_jax.jit(lambda x: (model(x).sum(), model[0](x), x * 2), pure=pure)
    for at in (0, 1, 2, 0, 1):
        x, y = ((torch.ones(2, 3) * (at + 1)).to("jax").requires_grad_() for _ in range(2))
        forward(x.sin() * 2)[at].sum().backward()
        (plain(y.sin() * 2), plain[0](y.sin() * 2), y.sin() * 4)[at].sum().backward()
        torch.testing.assert_close(x.grad.cpu(), y.grad.cpu())
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad.cpu())
    assert_run(forward, pure)


@both
def test_gradients_of_gradients_outside(pure):
    """The backward pass of a call without Python is a program, of which there is no graph."""
    x = torch.tensor([1.0, 2.0], device="jax", requires_grad=True)
    cube = torch_jax.jit(lambda x: (x**3).sum(), pure=pure)
    for call in range(3):
        (first,) = torch.autograd.grad(cube(x), x, create_graph=True)
        if pure and call == 2:
            with pytest.raises(RuntimeError, match="once_differentiable|does not require grad"):
                torch.autograd.grad(first.sum(), x)
        else:
            assert torch.autograd.grad(first.sum(), x)[0].tolist() == [6, 12]
