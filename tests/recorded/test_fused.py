"""Fused mode: recordings that cut themselves, and are compiled when they come again."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.compare import assert_same
from tests.support.lazily import counted, is_pending


def network(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)


def steps(device, count, after=lambda n, loss: None):
    """A training loop; the losses."""
    model = network(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    numbers = torch.Generator().manual_seed(0)
    losses = []
    for n in range(count):
        x = torch.randn(4, 6, generator=numbers).to(device)
        y = torch.randint(3, (4,), generator=numbers).to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        after(n, loss)
    return torch.stack(losses)


@pytest.mark.slow
@pytest.mark.parametrize("look", ["never", "each step", "now and then"])
def test_a_loop_is_cut_where_it_comes_around(look):
    def after(n, loss):
        if look == "each step" or (look == "now and then" and n % 3 == 0):
            loss.item()

    with counted() as did, torch_jax.fused():
        found = steps("jax", 24, after)
    assert_same(found, steps("cpu", 24), scale=10)
    assert did.graphs >= 8  # a group is one step to three, whatever is looked at
    assert did.compiles <= 8
    with counted() as did, torch_jax.fused():
        steps("jax", 8, after)
    assert did.compiles <= 1


def test_a_group_that_comes_once_is_not_compiled():
    x = torch.rand(5, device="jax")
    with counted() as did, torch_jax.fused():
        y = (x * 3 + 0.25).sin().cos()
        assert is_pending(y)
        y.sum().item()
    assert did.compiles == 0 and did.graphs == 1
    assert_same(y, (x.cpu() * 3 + 0.25).sin().cos())


def test_a_group_is_never_longer_than_its_bound():
    def run(x):
        for n in range(600):
            x = x * 0.5 if n % 7 else x + 1
        return x

    x = torch.rand(5)
    with counted() as did, torch_jax.fused():
        found = run(x.to("jax"))
    assert did.graphs >= 3
    assert_same(found, run(x))


def test_the_mode_can_be_set():
    before = torch_jax.config.get("mode")
    torch_jax.config.set("mode", "fused")
    try:
        y = torch.ones(3, device="jax") + 1
        assert is_pending(y)
    finally:
        torch_jax.config.set("mode", before)
    assert y.tolist() == [2.0] * 3


def test_errors_are_raised_at_the_call():
    with torch_jax.fused():
        x = torch.ones(3, device="jax") + 1
        with pytest.raises(RuntimeError, match="3"):
            x + torch.ones(4, device="jax")
        with pytest.raises(IndexError):
            x[torch.tensor([7], device="jax")]
        assert x.tolist() == [2.0] * 3
