"""Gradients are scaled, unscaled, and steps skipped, as by CUDA's scaler."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn


def scaled_step(scaler, optimizer, parameter, factor):
    optimizer.zero_grad()
    scaler.scale((parameter * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD([p], lr=0.5),
    "adamw": lambda p: torch.optim.AdamW([p], lr=0.5),
    "fused adamw": lambda p: torch.optim.AdamW([p], lr=0.5, fused=True),
}


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_step_with_a_gradient_that_is_not_finite_is_skipped(make, bad):
    p = nn.Parameter(torch.ones(3, device="jax"))
    optimizer = make(p)
    scaler = torch.amp.GradScaler("jax", init_scale=1024.0, growth_interval=2)
    scaled_step(scaler, optimizer, p, 1.0)
    after_one = p.detach().cpu().clone()
    assert (after_one == 0.5).all() or torch.allclose(after_one, torch.tensor(0.5), atol=0.01)
    scaled_step(scaler, optimizer, p, bad)
    assert torch.equal(p.detach().cpu(), after_one)
    assert scaler.get_scale() == 512.0
    scaled_step(scaler, optimizer, p, 1.0)
    scaled_step(scaler, optimizer, p, 1.0)
    assert scaler.get_scale() == 1024.0
    assert not torch.equal(p.detach().cpu(), after_one)


@pytest.mark.slow
def test_scaled_gradients_are_unscaled_for_clipping():
    p = nn.Parameter(torch.ones(3, device="jax"))
    optimizer = torch.optim.SGD([p], lr=1.0)
    scaler = torch.amp.GradScaler("jax", init_scale=256.0)
    scaler.scale((p * 3).sum()).backward()
    assert p.grad.cpu().tolist() == [768.0] * 3
    scaler.unscale_(optimizer)
    assert p.grad.cpu().tolist() == [3.0] * 3
    nn.utils.clip_grad_norm_([p], 1.0)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(p.detach().cpu(), torch.full((3,), 1 - 3**-0.5))


@pytest.mark.slow
def test_a_gradient_penalty_with_scaled_gradients():
    """https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-penalty."""

    def step(device, dtype):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=128.0)
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = model(torch.ones(2, 4, device=device)).square().mean()
        scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
        gradients = [g / scaler.get_scale() for g in scaled]
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = loss + sum(g.pow(2).sum() for g in gradients).sqrt()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return [p.detach().cpu() for p in model.parameters()]

    expected = step("cpu", None)
    torch.testing.assert_close(step("jax", None), expected)
    torch.testing.assert_close(step("jax", torch.bfloat16), expected, rtol=2e-2, atol=2e-2)


def test_several_outputs_are_scaled_alike():
    scaler = torch.amp.GradScaler("jax", init_scale=4.0)
    one, (two,) = scaler.scale([torch.ones(2, device="jax"), [torch.ones((), device="jax")]])
    assert one.cpu().tolist() == [4.0, 4.0]
    assert two.item() == 4.0


def test_the_state_of_a_scaler_is_saved_and_loaded():
    p = nn.Parameter(torch.ones(3, device="jax"))
    optimizer = torch.optim.SGD([p], lr=0.5)
    scaler = torch.amp.GradScaler("jax", init_scale=64.0, growth_interval=3)
    scaled_step(scaler, optimizer, p, 1.0)
    state = scaler.state_dict()
    assert state["scale"] == 64.0
    assert state["_growth_tracker"] == 1
    other = torch.amp.GradScaler("jax")
    other.load_state_dict(state)
    scaled_step(other, optimizer, p, 1.0)
    scaled_step(other, optimizer, p, 1.0)
    assert other.get_scale() == 128.0
    assert pickled(other).get_scale() == 128.0


def pickled(scaler):
    import pickle

    return pickle.loads(pickle.dumps(scaler))


def test_scaling_can_be_switched_off():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler = torch.amp.GradScaler("jax", enabled=False)
    x = torch.ones(3, device="jax")
    assert scaler.scale(x) is x
    assert scaler.get_scale() == 1.0
