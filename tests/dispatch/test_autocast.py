"""Regions of autocast: modules in them, nested regions, and the state after them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.autocast import Casts, autocast
from tests.support.processes import output
from tests.support.values import randn

LOWER = (torch.bfloat16, torch.float16)


# --- modules ------------------------------------------------------------------------------------

MODULES = {
    "linear": (lambda: nn.Linear(8, 8), torch.bfloat16),
    "conv": (lambda: nn.Conv1d(3, 3, 2), torch.bfloat16),
    "layer_norm": (lambda: nn.LayerNorm(8), torch.float32),
    "lstm": (lambda: nn.LSTM(8, 8), torch.bfloat16),
    "gru": (lambda: nn.GRU(8, 8), torch.bfloat16),
    "rnn": (lambda: nn.RNN(8, 8), torch.bfloat16),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True), torch.float32),
    "batch_norm": (lambda: nn.BatchNorm1d(3), torch.float32),
    "embedding": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 2)), torch.bfloat16),
}


@pytest.mark.parametrize("make, dtype", MODULES.values(), ids=MODULES)
@pytest.mark.slow
def test_modules_are_trained(make, dtype):
    torch.manual_seed(0)
    module = make()
    x = torch.randn(2, 3, 8)
    expected = first(module(x))
    expected.square().mean().backward()
    moved = copy.deepcopy(module).to("jax")
    moved.zero_grad()
    with autocast():
        actual = first(moved(x.to("jax")))
        assert actual.dtype == dtype
        actual.square().mean().backward()
    torch.testing.assert_close(actual.cpu().float(), expected, rtol=0.05, atol=0.05)
    for a, e in zip(moved.parameters(), module.parameters(), strict=True):
        assert a.grad.dtype == torch.float32
        torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=0.1, atol=0.05)


def first(result):
    return result[0] if isinstance(result, tuple) else result


KEYS = torch.tensor([[False, False, True], [False, False, False]])
PAIRS = torch.eye(3).bool()
MASKS = {"none": {}, "pairs": {"src_mask": PAIRS}, "keys": {"src_key_padding_mask": KEYS}}
MASKS["both"] = MASKS["pairs"] | MASKS["keys"]


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("norm_first, activation", [(False, "relu"), (True, "gelu")])
@pytest.mark.slow
def test_transformers_in_evaluation_run_as_in_training(norm_first, activation, masks):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        8, 2, 8, 0.0, activation, batch_first=True, norm_first=norm_first, device="jax"
    )
    masks = {name: mask.to("jax") for name, mask in masks.items()}
    x = randn(2, 3, 8)
    with autocast(), torch.no_grad():
        trained = layer(x, **masks)
        evaluated = layer.eval()(x, **masks)
    assert evaluated.dtype == trained.dtype == torch.float32
    assert torch.equal(evaluated.cpu(), trained.cpu())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"average_attn_weights": False}, {"need_weights": False}])
def test_attention_blocks_in_evaluation_run_as_in_training(options):
    torch.manual_seed(0)
    block = nn.MultiheadAttention(8, 2, batch_first=True, device="jax")
    x = randn(2, 3, 8)
    with autocast(), torch.no_grad():
        trained = block(x, x, x, **options)
        evaluated = block.eval()(x, x, x, **options)
    for a, b in zip(evaluated, trained, strict=True):
        assert (a is None and b is None) or torch.equal(a.cpu(), b.cpu())
    assert evaluated[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", LOWER, ids=str)
def test_einsum_runs_in_the_dtype_of_the_region(dtype):
    x = randn(2, 3, 4, 5)
    with autocast(dtype):
        assert torch.einsum("bkhd,bqhd->bqkh", x, x).dtype == dtype


@pytest.mark.slow
def test_attention_runs_in_the_dtype_of_the_region():
    q = randn(1, 2, 4, 8, requires_grad=True)
    mask = torch.zeros(4, 4, device="jax")
    with autocast():
        assert F.scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32


def test_the_saved_values_are_of_the_lower_dtype():
    saved = []
    x = randn(4, 4, requires_grad=True)
    with (
        autocast(),
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t),
    ):
        x @ x
    assert {t.dtype for t in saved} == {torch.bfloat16}


@pytest.mark.slow
def test_gradients_are_those_of_the_cpu_under_its_autocast():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x, target = torch.randn(5, 8), torch.randint(4, (5,))
    moved = copy.deepcopy(model).to("jax")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = F.cross_entropy(model(x), target)
    expected.backward()
    with autocast():
        actual = F.cross_entropy(moved(x.to("jax")), target.to("jax"))
    actual.backward()
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-2, atol=1e-2)
    for a, e in zip(moved.parameters(), model.parameters(), strict=True):
        assert a.grad.dtype == torch.float32
        torch.testing.assert_close(a.grad.cpu(), e.grad, rtol=3e-2, atol=3e-3)


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.slow
def test_a_network_is_trained(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 1))
    model = model.to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("jax", enabled=dtype is torch.float16)
    x = randn(64, 8)
    y = x[:, :1] * x[:, 1:2]
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        with autocast(dtype):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


# --- regions ------------------------------------------------------------------------------------


def test_regions_nest():
    x = torch.ones(3, 3, device="jax")
    with autocast(torch.bfloat16):
        assert torch.is_autocast_enabled("jax")
        assert torch.get_autocast_dtype("jax") == torch.bfloat16
        with autocast(enabled=False):
            assert not torch.is_autocast_enabled("jax")
            assert (x @ x).dtype == torch.float32
            with autocast(torch.float16):
                assert (x @ x).dtype == torch.float16
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.float16):
            assert (x @ x).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32


def test_disabling_and_enabling_the_cache_nests():
    w = nn.Parameter(randn(3, 3))
    x = torch.ones(3, 3, device="jax", dtype=torch.bfloat16)
    with autocast(), Casts() as casts:
        x @ w
        with autocast(cache_enabled=False):
            assert not torch.is_autocast_cache_enabled()
            x @ w
            x @ w
        assert torch.is_autocast_cache_enabled()
        x @ w
        assert casts.count == 3
    assert torch.is_autocast_cache_enabled()


def test_a_region_is_left_as_it_was_entered_where_an_error_leaves_it():
    before = torch.get_autocast_dtype("jax")
    with pytest.raises(ZeroDivisionError), autocast(), autocast(torch.float16, enabled=False):
        1 / 0  # noqa: B018
    assert torch.get_autocast_dtype("jax") == before
    assert not torch.is_autocast_enabled("jax")


def test_a_disabled_region_takes_what_comes_from_around_it_in_its_own_dtype():
    """The example of https://docs.pytorch.org/docs/stable/amp.html#torch.autocast."""
    a, b, c, d = randn(4, 8, 8)
    with autocast(torch.float16):
        e = torch.mm(a, b)
        with autocast(enabled=False):
            with pytest.raises(RuntimeError, match="same dtype"):
                torch.mm(c, e)
            f = torch.mm(c, e.float())
        g = torch.mm(d, f)
    assert [t.dtype for t in (e, f, g)] == [torch.float16, torch.float32, torch.float16]


def test_the_default_dtype_is_pytorchs():
    with torch.autocast("jax"):
        x = torch.ones(3, 3, device="jax")
        assert (x @ x).dtype == torch.get_autocast_dtype("jax") == torch.float16


@pytest.mark.slow
def test_a_region_may_be_what_uses_the_device_first():
    program = """
import sys, torch
assert "torch_jax.dispatch.autocast" not in sys.modules
with torch.autocast("jax", dtype=torch.bfloat16):
    w = torch.ones(3, 3, device="jax", requires_grad=True)
    assert (w @ w).dtype == torch.bfloat16
    from torch_jax.dispatch import autocast
    assert autocast._casts.found
assert not autocast._casts.found
"""
    output("-c", program)


def test_decorated_functions():
    @autocast()
    def product(x):
        return x @ x

    x = torch.ones(3, 3, device="jax")
    assert product(x).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32


def test_an_unsupported_dtype_is_warned_of_and_switched_off():
    x = torch.ones(3, 3, device="jax")
    with pytest.warns(UserWarning, match="not supported. Disabling autocast"):
        region = autocast(torch.float64)
    with region:
        assert not torch.is_autocast_enabled("jax")
        assert (x @ x).dtype == torch.float32


def test_backward_in_and_outside_of_the_region():
    x = randn(3, 3, requires_grad=True)
    with autocast():
        loss = (x @ x).exp().sum()
        (inside,) = torch.autograd.grad(loss, x, retain_graph=True)
    (outside,) = torch.autograd.grad(loss, x)
    assert inside.dtype == outside.dtype == torch.float32
    torch.testing.assert_close(inside.cpu(), outside.cpu(), rtol=2e-2, atol=2e-2)


def test_custom_functions():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="jax")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="jax")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            dtypes.append((grad @ b.T).dtype)
            return (grad @ b.T).float(), (a.T @ grad).float()

    class InFloat32(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="jax", cast_inputs=torch.float32)
        def forward(ctx, a):
            dtypes.append((a @ a).dtype)
            return a * 1

        @staticmethod
        @torch.amp.custom_bwd(device_type="jax")
        def backward(ctx, grad):
            dtypes.append((grad @ grad).dtype)
            return grad

    a = randn(3, 3, requires_grad=True)
    dtypes = []
    with autocast():
        out = Product.apply(a, a)
        assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert dtypes == [torch.bfloat16]
    dtypes.clear()
    with autocast():
        InFloat32.apply(a.detach().bfloat16().requires_grad_()).sum().backward()
    assert dtypes == [torch.float32, torch.float32]


def test_checkpointed_regions_are_run_again_as_they_were():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).to("jax")
    x = randn(2, 4, requires_grad=True)

    def gradients(run):
        model.zero_grad()
        with autocast():
            run().float().square().sum().backward()
        return [p.grad.cpu() for p in model.parameters()]

    from torch.utils.checkpoint import checkpoint

    plain = gradients(lambda: model(x))
    for reentrant in (False, True):
        again = gradients(lambda: checkpoint(model, x, use_reentrant=reentrant))  # noqa: B023
        torch.testing.assert_close(again, plain)


def test_with_function_transforms():
    w = randn(3, 3)
    x = randn(5, 3)
    with autocast():
        batched = torch.func.vmap(lambda row: w @ row)(x)
        gradient = torch.func.grad(lambda a: (a @ a).float().sum())(w)
    assert batched.dtype == torch.bfloat16
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(batched.cpu().float(), (x @ w.T).cpu(), rtol=0.05, atol=0.05)


def test_in_fx_graphs():
    from torch.fx.experimental.proxy_tensor import make_fx

    w = nn.Parameter(randn(3, 3))

    def function(x):
        with autocast():
            return (x @ w).exp()

    x = randn(3, 3)
    graph = make_fx(function)(x)
    assert graph(x).dtype == torch.float32
    torch.testing.assert_close(graph(x).cpu(), function(x).cpu())


def test_device_says_what_autocast_supports():
    assert set(torch.jax.get_amp_supported_dtype()) == set(LOWER)
    assert torch.amp.is_autocast_available("jax")
