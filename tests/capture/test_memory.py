"""Memory under ``torch_jax.jit``: what is written is donated, and what others hold survives."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.steps import step_of
from tests.support.values import ones

pytestmark = pytest.mark.xla_default


def address(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor is."""
    return tensor.untyped_storage().array.unsafe_buffer_pointer()


def test_memory_of_what_is_written_is_donated():
    weight = ones(16)
    step = torch_jax.jit(lambda: weight.mul_(2).sum())
    step()
    for _ in range(3):
        before = address(weight)
        step()
        assert address(weight) == before
    assert weight[0].item() == 16


def test_nothing_is_donated_where_the_user_says_so():
    weight = ones(16)
    step = torch_jax.jit(lambda: weight.mul_(2).sum(), donate=False)
    for _ in range(3):
        before = weight.untyped_storage().array
        step()
        assert not before.is_deleted()
    assert weight[0].item() == 8


@pytest.mark.parametrize(
    "share",
    [copy.deepcopy, torch.clone, lambda t: t.detach().clone(), lambda t: t.to("jax", copy=True)],
    ids=["deepcopy", "clone", "detach", "to"],
)
def test_copies_made_before_and_between_calls_survive(share):
    weight = ones()
    step = torch_jax.jit(lambda: weight.mul_(2).sum())
    copies = [share(weight)]
    for _ in range(3):
        step()
        copies.append(share(weight))
    assert [t[0].item() for t in copies] == [1, 2, 4, 8]


def test_copies_of_models_and_their_state_survive(programs_of_traces):
    model = nn.Linear(3, 3).to("jax")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    step = torch_jax.jit(step_of(model, optimizer))
    first = copy.deepcopy(model.state_dict())
    before = model.weight.detach().cpu().clone()
    step(ones(2, 3))
    middle = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    weight, losses = model.weight.detach().cpu().clone(), [step(ones(2, 3)).item()]
    step(ones(2, 3))
    assert torch.equal(first["weight"].cpu(), before)
    assert torch.equal(middle[0].weight.detach().cpu(), weight)
    model.load_state_dict(middle[0].state_dict())
    optimizer.load_state_dict(middle[1])
    assert step(ones(2, 3)).item() == pytest.approx(losses[0])
    assert len(programs_of_traces) == 1, step.explain()


def test_an_array_that_jax_code_holds_survives():
    weight = ones()
    step = torch_jax.jit(lambda: weight.mul_(2).sum())
    step()
    held = weight.untyped_storage().array
    step()
    step()
    assert held.tolist() == [2, 2, 2]


def test_writes_are_seen_by_autograd():
    weight = ones().requires_grad_()
    other = ones()
    step = torch_jax.jit(lambda: other.mul_(2).sum())
    step()
    product = (weight * other).sum()
    step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
