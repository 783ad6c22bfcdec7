"""Gradients of several backward passes in one compiled step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_jax
from tests.support import executors

RUNS = {name: executors.EXECUTORS[name] for name in ("eager", "lazy", "jit")}
RUNS["recorded"] = torch_jax.jit


def training(device, runs, parts, micro):
    """The parameters after four steps, each of ``parts`` backward passes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @runs
    def step(x):
        optimizer.zero_grad()
        total = 0
        for part in micro(x, parts):
            loss = model(part).square().mean() / parts
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total, x + 0  # an argument passes the ends of all backward passes

    for _ in range(4):
        total, same = step(torch.arange(32.0).reshape(8, 4).to(device) / 32)
    assert torch.equal(same.cpu(), torch.arange(32.0).reshape(8, 4) / 32)
    return [total.cpu(), *(parameter.detach().cpu() for parameter in model.parameters())]


@pytest.mark.slow
@pytest.mark.parametrize("executor", RUNS)
@pytest.mark.parametrize("micro", [torch.chunk, lambda x, parts: x.unflatten(0, (parts, -1))])
def test_parts_of_a_batch(executor, micro):
    expected = training("cpu", lambda function: function, 4, micro)
    found = training("jax", RUNS[executor], 4, micro)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found[1:], training("cpu", lambda f: f, 1, micro)[1:])


def test_two_optimizers_and_a_graph_that_is_kept():
    def run(device, runs):
        torch.manual_seed(0)
        one, other = nn.Linear(3, 3).to(device), nn.Linear(3, 3).to(device)
        both = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, other)]

        @runs
        def step(x):
            for optimizer in both:
                optimizer.zero_grad()
            y = one(x)
            (y - 1).square().sum().backward(retain_graph=True)
            both[0].step()
            other(y.detach()).square().sum().backward()
            y.sin().sum().backward()
            both[1].step()
            return [p.grad.clone() for net in (one, other) for p in net.parameters()]

        return [[g.cpu() for g in step(torch.eye(3, device=device))] for _ in range(4)]

    expected = run("cpu", lambda function: function)
    for pure in (False, True):
        torch.testing.assert_close(run("jax", torch_jax.jit(pure=pure)), expected)
