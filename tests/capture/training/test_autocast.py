"""Autocast regions under ``torch_jax.jit``: dtypes, values, gradients are those of eager calls."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_jax
from tests.support.autocast import autocast
from tests.support.jitted import both
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


def written_between(x, w):
    with autocast():
        a = x @ w
        with torch.no_grad():
            w.mul_(2)
        return a, x @ w


def again(reentrant):
    def products(x, w):
        return F.gelu(x @ w) @ w

    return lambda x, w: checkpoint(products, x, w, use_reentrant=reentrant)


CASES = {
    "region": autocast()(lambda x, w: ((x @ w).exp(), x @ w)),
    "float16": autocast(F16)(lambda x, w: (F.layer_norm(x @ w, (4,)), x @ w)),
    "default dtype": torch.autocast("jax")(lambda x, w: x @ w),
    "nested": nested,
    "without a cache": autocast(cache_enabled=False)(lambda x, w: (x @ w) @ w),
    "written between": written_between,
    "function": autocast()(lambda x, w: Product.apply(x, w)),
    "checkpoint": autocast()(again(False)),
    "reentrant": autocast()(again(True)),
}
AROUND = ("region", "nested", "function")  # these have their backward pass in a region, too


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, around", [*((name, False) for name in CASES), *((name, True) for name in AROUND)]
)
def test_regions_in_a_compiled_step(name, around, agree):
    def step(x, w):
        with autocast() if around else nullcontext():
            result = CASES[name](x, w)
            results = result if isinstance(result, tuple) else (result,)
            sum(r.float().square().sum() for r in results).backward()
        return [r.detach() for r in results]

    def program(compile):
        x, w = ((torch.randn(n, 4) / 2).to("jax").requires_grad_() for n in (3, 4))
        compiled = compile(step)
        for _ in range(4):
            x.grad = w.grad = None
            yield compiled(x, w), x, w
        assert not torch.is_autocast_enabled("jax") and torch.is_autocast_cache_enabled()

    agree(program, tolerance=2e-2)


def test_a_region_around_the_call_is_part_of_what_is_compiled(agree):
    def program(compile):
        w, x = randn(4, 4, requires_grad=True), randn(3, 4)
        compiled = compile(lambda x: x @ w)
        for dtype in (None, BF16, F16, None, BF16):
            with autocast(dtype or BF16, enabled=dtype is not None):
                yield compiled(x)

    agree(program, kinds=3, tolerance=2e-2)


def test_a_compiled_module_in_a_region_of_an_ordinary_loop(agree):
    def program(compile):
        model = compile(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).to("jax"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.linspace(-1, 1, 24).reshape(6, 4).to("jax")
        for _ in range(4):
            optimizer.zero_grad()
            with autocast():
                y = model(x)
                loss = F.mse_loss(y, x.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            yield y, loss, list(model.parameters())

    agree(program, tolerance=2e-2)


@both
@pytest.mark.filterwarnings("ignore:.*gradients are wanted elsewhere")  # of the layers' slices
def test_scanned_layers_in_a_region(pure):
    layers, x = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to("jax"), randn(2, 4).to(BF16)
    with autocast():
        expected = nn.Sequential(*layers)(x)
    scanned = torch_jax.jit(autocast()(lambda x: torch_jax.scan_layers(layers, x)), pure=pure)
    for _ in range(3):
        result = scanned(x)
        assert result.dtype == expected.dtype == BF16
        torch.testing.assert_close(result.cpu(), expected.cpu(), rtol=2e-2, atol=2e-2)
