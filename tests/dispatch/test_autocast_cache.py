"""Autocast casts a weight once in a region, and keeps nothing of it; not under a trace either."""

from __future__ import annotations

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

from tests.support.autocast import Casts, autocast
from tests.support.values import randn
from torch_jax.dispatch import autocast as amp
from torch_jax.memory import transfer
from torch_jax.memory.storage import wrap

# --- the cache of cast weights ------------------------------------------------------------------


def test_a_weight_is_cast_once_in_a_region():
    w = nn.Parameter(randn(3, 3))
    x = randn(3, 3, dtype=torch.bfloat16)
    with autocast(), Casts() as casts:
        y = x @ w
        y = y @ w
        with autocast():  # the region that counts is the outermost
            y = y @ w
        y = y @ w
        assert casts.count == 1
    y.float().sum().backward()
    assert w.grad.dtype == torch.float32
    with autocast(), Casts() as casts:
        x @ w
    assert casts.count == 1


def test_what_is_no_weight_is_cast_each_time():
    leaf = randn(3, 3, requires_grad=True)
    others = {
        "no gradient": leaf.detach(),
        "not a leaf": leaf * 1,
        "a view": leaf.detach().view(9).view(3, 3).requires_grad_(),
    }
    x = torch.ones(3, 3, device="jax", dtype=torch.bfloat16)
    for name, other in others.items():
        with autocast(), Casts() as casts:
            x @ other
            x @ other
        assert casts.count == 2, name
    with autocast(cache_enabled=False), Casts() as casts:
        x @ leaf
        x @ leaf
    assert casts.count == 2


def test_each_dtype_has_its_cast():
    w = nn.Parameter(randn(3, 3))
    with autocast(torch.bfloat16):
        assert (w @ w).dtype == torch.bfloat16
        with autocast(torch.float16):
            assert (w @ w).dtype == torch.float16
        assert (w @ w).dtype == torch.bfloat16


def test_a_cast_made_without_gradients_does_not_take_them_away():
    w = nn.Parameter(randn(3, 3))
    x = torch.ones(3, 3, device="jax")
    with autocast():
        with torch.no_grad():
            x @ w
        with torch.inference_mode():
            x @ w
        (x @ w).float().sum().backward()
    assert w.grad is not None


WRITES = {
    "in place": lambda w: w.add_(1),
    "data": lambda w: setattr(w, "data", w.data + 1),
    "through data": lambda w: w.data.add_(1),
    "through a view": lambda w: w[0].add_(1),
    "foreach": lambda w: torch._foreach_add_([w], 1.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_weight_written_in_a_region_is_cast_again(write):
    w = nn.Parameter(torch.zeros(3, 3, device="jax"))
    x = torch.eye(3, device="jax")
    with autocast():
        assert (x @ w).sum().item() == 0
        with torch.no_grad():
            write(w)
        assert (x @ w).sum().item() == w.sum().item() != 0


@pytest.mark.slow
def test_nothing_is_kept_after_the_region():
    w = nn.Parameter(randn(3, 3))
    x = torch.ones(3, 3, device="jax")
    with autocast():
        with autocast(enabled=False):
            pass
        x @ w
        assert amp._casts.found
    assert not amp._casts.found
    with pytest.raises(ValueError, match="out"), autocast():
        x @ w
        raise ValueError("out")
    assert not amp._casts.found
    gone = weakref.ref(w.untyped_storage().array)
    del w
    gc.collect()
    assert gone() is None


def test_each_thread_has_its_own_region_and_cache():
    w = nn.Parameter(randn(3, 3))
    seen = []

    def outside():
        seen.append((w @ w).dtype)
        with autocast(torch.float16):
            seen.append((w @ w).dtype)
        seen.append(len(amp._casts.found))

    with autocast(torch.bfloat16):
        w @ w
        thread = threading.Thread(target=outside)
        thread.start()
        thread.join()
        assert len(amp._casts.found) == 1
    assert seen == [torch.float32, torch.float16, 0]


# --- under a trace ------------------------------------------------------------------------------


def trace(function, *memories):
    def program(*memories):
        return transfer.value_of(function(*(wrap(m, torch.float32) for m in memories)))

    with jax.enable_x64(True):
        return jax.make_jaxpr(program)(*memories)


def run(jaxpr, *memories):
    with jax.enable_x64(True):
        (result,) = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *memories)
    return torch.tensor(result.astype(jnp.float32).tolist())


def step(x, w):
    w.requires_grad_()
    with autocast():
        loss = ((x @ w) @ w).exp().sum()
    (gradient,) = torch.autograd.grad(loss, w)
    return gradient


@pytest.mark.slow
def test_a_traced_step_is_that_of_eager():
    with jax.enable_x64(True), jax.checking_leaks():
        x, w = jax.random.normal(jax.random.key(0), (2, 3, 3), jnp.float32) / 4
        jaxpr = trace(step, x, w)
    assert "bf16" in str(jaxpr)
    eager = step(wrap(x, torch.float32), wrap(w, torch.float32))
    torch.testing.assert_close(run(jaxpr, x, w), eager.cpu(), rtol=2e-2, atol=2e-2)


def test_no_tracer_is_kept_and_no_constant_taken_in_a_region_around_the_trace():
    w = nn.Parameter(randn(3, 3))
    ones = jnp.ones((3, 3), jnp.float32)
    with autocast():
        trace(lambda x: x @ w, ones)
        assert not amp._casts.found
        (wrap(ones, torch.float32) @ w).float().sum().backward()  # no tracer in it
        jaxpr = trace(lambda x: x @ w, ones)
    assert any(c is w.untyped_storage().array for c in jaxpr.consts)
    assert all(c.dtype != jnp.bfloat16 for c in jaxpr.consts)
