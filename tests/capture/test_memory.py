"""Memory under ``torch_jax.jit``: what is written is donated, and what others hold survives."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.jitted import assert_run, both
from tests.support.steps import step_of
from tests.support.values import ones
from torch_jax.memory.storage import memory_of

pytestmark = pytest.mark.xla_default


def address(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor is."""
    return memory_of(tensor).unsafe_buffer_pointer()


@both
def test_memory_of_what_is_written_is_donated(pure):
    weight = ones(16)
    step = torch_jax.jit(lambda: weight.mul_(2).sum(), pure=pure)
    for _ in range(3):
        step()
    for _ in range(3):
        before = address(weight)
        step()
        assert address(weight) == before
    assert weight[0].item() == 64
    assert step.explain().donated == pure


@both
@pytest.mark.parametrize(
    "share",
    [copy.deepcopy, torch.clone, lambda t: t.detach().clone(), lambda t: t.to("jax", copy=True)],
    ids=["deepcopy", "clone", "detach", "to"],
)
def test_copies_made_before_and_between_calls_survive(share, pure):
    weight = ones()
    step = torch_jax.jit(lambda: weight.mul_(2).sum(), pure=pure)
    copies = [share(weight)]
    for _ in range(4):
        step()
        copies.append(share(weight))
    assert [t[0].item() for t in copies] == [1, 2, 4, 8, 16]
    assert_run(step, pure)


@both
def test_copies_of_models_and_their_state_survive(pure):
    model = nn.Linear(3, 3).to("jax")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step = torch_jax.jit(step_of(model, optimizer), pure=pure)
    first = copy.deepcopy(model.state_dict())
    before = model.weight.detach().cpu().clone()
    for _ in range(3):
        step(ones(2, 3))
    middle = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    weight, losses = model.weight.detach().cpu().clone(), [step(ones(2, 3)).item()]
    step(ones(2, 3))
    assert torch.equal(first["weight"].cpu(), before)
    assert torch.equal(middle[0].weight.detach().cpu(), weight)
    model.load_state_dict(middle[0].state_dict())
    optimizer.load_state_dict(middle[1])
    assert step(ones(2, 3)).item() == pytest.approx(losses[0])
    assert_run(step, pure, kinds=2)  # load_state_dict puts other tensors into the state


@both
def test_an_array_that_jax_code_holds_survives(pure):
    weight = ones()
    step = torch_jax.jit(lambda: weight.mul_(2).sum(), pure=pure)
    step()
    held = memory_of(weight)
    step()
    step()
    assert held.tolist() == [2, 2, 2]
    assert weight.tolist() == [8, 8, 8]


@both
def test_writes_are_seen_by_autograd(pure):
    weight = ones().requires_grad_()
    other = ones()
    step = torch_jax.jit(lambda: other.mul_(2).sum(), pure=pure)
    for _ in range(3):
        step()
    product = (weight * other).sum()
    step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
