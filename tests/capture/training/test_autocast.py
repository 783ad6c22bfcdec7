"""Autocast regions under ``torch_jax.jit``: dtypes, values, gradients are those of eager calls."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_jax
from tests.support.autocast import autocast
from tests.support.jitted import assert_run, both
from tests.support.values import randn

BF16, F16 = torch.bfloat16, torch.float16


class Product(torch.autograd.Function):
    """Runs in the dtype of the region, forward and backward."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="jax")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="jax")
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        assert (gradient @ w.t()).dtype == ctx._dtype
        return (gradient @ w.t()).float(), (x.t() @ gradient).float()


def region(x, w):
    with autocast():
        return (x @ w).exp(), x @ w


def of_float16(x, w):
    with autocast(F16):
        return F.layer_norm(x @ w, (4,)), x @ w


def of_the_default_dtype(x, w):
    with torch.autocast("jax"):
        assert torch.get_autocast_dtype("jax") == F16
        return x @ w


def nested(x, w):
    with autocast():
        a = x @ w
        with autocast(enabled=False):
            assert not torch.is_autocast_enabled("jax")
            b = a.float() @ w
            with autocast(F16):
                c = b @ w
            d = b @ w
        return a, b, c, d, c @ w


def without_a_cache(x, w):
    with autocast(cache_enabled=False):
        assert not torch.is_autocast_cache_enabled()
        return (x @ w) @ w


def written_between(x, w):
    with autocast():
        a = x @ w
        with torch.no_grad():
            w.mul_(2)
        return a, x @ w


@autocast()
def decorated(x, w):
    return x @ w


def by_hand(x, w):
    before = torch.is_autocast_enabled("jax"), torch.get_autocast_dtype("jax")
    torch.set_autocast_enabled("jax", True)
    torch.set_autocast_dtype("jax", BF16)
    try:
        return x @ w
    finally:
        torch.set_autocast_enabled("jax", before[0])
        torch.set_autocast_dtype("jax", before[1])
        torch.clear_autocast_cache()


def custom_function(x, w):
    with autocast():
        return Product.apply(x, w)


def _two_products(x, w):
    return F.gelu(x @ w) @ w


def checkpointed(x, w):
    with autocast():
        return checkpoint(_two_products, x, w, use_reentrant=False)


def checkpointed_reentrant(x, w):
    with autocast():
        return checkpoint(_two_products, x, w, use_reentrant=True)


def transformed(x, w):
    with autocast():
        rows = torch.func.vmap(lambda row: row @ w)(x)
    return rows


CASES = [
    region, of_float16, of_the_default_dtype, nested, without_a_cache, written_between, decorated,
    by_hand, custom_function, checkpointed, checkpointed_reentrant, transformed,
]  # fmt: skip


def step_of(case, backward_inside=False):
    """A step that returns what the case gives, and gradients in ``.grad``."""

    def step(x, w):
        with autocast() if backward_inside else nullcontext():
            result = case(x, w)
            results = result if isinstance(result, tuple) else (result,)
            sum(r.float().square().sum() for r in results).backward()
        return [r.detach() for r in results]

    return step


def run(wrap, case, calls=2, **options):
    torch.manual_seed(0)
    x = (torch.randn(3, 4) / 2).to("jax").requires_grad_()
    w = nn.Parameter((torch.randn(4, 4) / 2).to("jax"))
    step, found = wrap(step_of(case, **options)), []
    for _ in range(calls):
        x.grad = w.grad = None
        found.append([t.cpu() for t in (*step(x, w), x.grad, w.grad)])
    assert not torch.is_autocast_enabled("jax") and torch.is_autocast_cache_enabled()
    return found, step


@pytest.mark.slow
@both
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_regions_in_a_compiled_step(case, pure):
    eager, _ = run(lambda step: step, case, 4)
    compiled, step = run(torch_jax.jit(pure=pure), case, 4)
    assert_run(step, pure)
    for ours, theirs in zip(compiled, eager, strict=True):
        assert [t.dtype for t in ours] == [t.dtype for t in theirs]
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


@both
@pytest.mark.parametrize("case", [region, nested, custom_function], ids=lambda case: case.__name__)
def test_backward_inside_the_region(case, pure):
    eager, _ = run(lambda step: step, case, backward_inside=True)
    compiled, _ = run(torch_jax.jit(pure=pure), case, 4, backward_inside=True)
    assert [t.dtype for t in compiled[3]] == [t.dtype for t in eager[1]]
    torch.testing.assert_close(compiled[2:], eager, rtol=2e-2, atol=2e-2)


@both
def test_a_region_around_the_call_is_part_of_what_is_compiled(pure):
    w = nn.Parameter(randn(4, 4))
    x = randn(3, 4)
    compiled = torch_jax.jit(lambda x: x @ w, pure=pure)
    for dtype in (None, BF16, F16, None, BF16):
        with autocast(dtype or BF16, enabled=dtype is not None):
            assert compiled(x).dtype == (x @ w).dtype == (dtype or torch.float32)
    assert_run(compiled, pure, kinds=3)


@pytest.mark.slow
@both
def test_a_compiled_module_in_a_region_of_an_ordinary_loop(pure):
    def train(wrap):
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).to("jax"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.linspace(-1, 1, 24, device="jax").reshape(6, 4)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            with autocast():
                out = model(x)
                assert out.dtype == BF16
                loss = F.mse_loss(out, x.sum(1, keepdim=True))
            loss.backward()
            assert all(p.grad.dtype == torch.float32 for p in model.parameters())
            optimizer.step()
            losses.append(loss.item())
        return losses

    wrap = torch_jax.jit(pure=pure)
    torch.testing.assert_close(train(wrap), train(lambda m: m), rtol=2e-2, atol=2e-2)


@both
def test_each_thread_has_its_own_region(pure):
    w = nn.Parameter(randn(4, 4))
    x = randn(3, 4)
    compiled = torch_jax.jit(lambda x: x @ w, pure=pure)
    barrier, seen = threading.Barrier(2), {}

    def work(dtype):
        with autocast(dtype):
            for _ in range(5):
                barrier.wait()
                seen.setdefault(dtype, set()).add(compiled(x).dtype)

    threads = [threading.Thread(target=work, args=(dtype,)) for dtype in (BF16, F16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {BF16: {BF16}, F16: {F16}}
    assert compiled(x).dtype == torch.float32


@both
@pytest.mark.filterwarnings("ignore:.*gradients are wanted elsewhere")  # of the layers' slices
def test_scanned_layers_in_a_region(pure):
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to("jax")
    x = randn(2, 4)

    @torch_jax.jit(pure=pure)
    def scanned(x):
        with autocast():
            return torch_jax.scan_layers(layers, x.to(BF16))

    with autocast():
        expected = x.to(BF16)
        for layer in layers:
            expected = layer(expected)
    for _ in range(3):
        result = scanned(x)
        assert result.dtype == expected.dtype == BF16
        torch.testing.assert_close(result.cpu(), expected.cpu(), rtol=2e-2, atol=2e-2)
