"""Memory under ``torch_jax.jit``: written tensors are donated, and shared memory survives."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.jitted import assert_run, both
from tests.support.steps import step_of
from tests.support.values import ones
from torch_jax import config
from torch_jax.memory.storage import memory_of


def doubling(pure):
    weight = ones()
    return weight, torch_jax.jit(lambda: weight.mul_(2).sum(), pure=pure)


@pytest.mark.xla_default
@both
def test_memory_of_what_is_written_is_donated(pure):
    weight, step = doubling(pure)
    for call in range(6):
        before = memory_of(weight).unsafe_buffer_pointer()
        step()
        assert call < 3 or memory_of(weight).unsafe_buffer_pointer() == before
    assert weight[0].item() == 64 and step.explain().donated == pure


COPIES = {
    "deepcopy": copy.deepcopy,
    "clone": torch.clone,
    "detach": lambda tensor: tensor.detach().clone(),
    "to": lambda tensor: tensor.to("jax", copy=True),
    "array": memory_of,  # which JAX code holds
}


@pytest.mark.xla_default
@both
@pytest.mark.parametrize("share", COPIES.values(), ids=COPIES)
def test_copies_made_before_and_between_calls_survive(share, pure):
    weight, step = doubling(pure)
    copies = [share(weight)]
    for _ in range(4):
        step()
        copies.append(share(weight))
    assert [one[0].item() for one in copies] == [1, 2, 4, 8, 16]
    assert_run(step, pure)


@pytest.mark.xla_default
@both
def test_copies_of_models_and_their_state_survive(pure):
    model = nn.Linear(3, 3).to("jax")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step = torch_jax.jit(step_of(model, optimizer), pure=pure)
    first, before = copy.deepcopy(model.state_dict()), model.weight.detach().cpu().clone()
    for _ in range(3):
        step(ones(2, 3))
    middle = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    weight, loss = model.weight.detach().cpu().clone(), step(ones(2, 3)).item()
    step(ones(2, 3))
    assert torch.equal(first["weight"].cpu(), before)
    assert torch.equal(middle[0].weight.detach().cpu(), weight)
    model.load_state_dict(middle[0].state_dict())
    optimizer.load_state_dict(middle[1])
    assert step(ones(2, 3)).item() == pytest.approx(loss)
    assert_run(step, pure, kinds=2)  # load_state_dict puts other tensors into the state


@pytest.mark.xla_default
@both
def test_writes_are_seen_by_autograd(pure):
    (other, step), weight = doubling(pure), ones().requires_grad_()
    for _ in range(3):
        step()
    product = (weight * other).sum()
    step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_arrays_that_are_replaced_start_no_collection():
    weights, phases = [ones(1) for _ in range(60)], []

    def double() -> None:
        for weight in weights:
            weight.mul_(2)

    def note(phase: str, _: dict) -> None:
        phases.append(phase)

    step = torch_jax.jit(double, pure=True)
    step()
    thresholds = gc.get_threshold()
    gc.set_threshold(40, *thresholds[1:])
    gc.callbacks.append(note)
    try:
        with config.temporarily("jit_check_every", 0):
            for _ in range(20):
                step()
        assert gc.get_threshold()[0] == 40
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)
    assert phases.count("start") < 10
    assert all(weight.item() == 2**21 for weight in weights[:2])
