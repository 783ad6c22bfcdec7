"""Autocast follows PyTorch's CUDA policies; weights are cast once in a region; gradients scale."""

from __future__ import annotations

import copy
import functools
import gc
import threading
import warnings
import weakref

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.processes import output
from torch_jax import amp, transfer, variants
from torch_jax.storage import wrap

LOWER = (torch.bfloat16, torch.float16)


def autocast(dtype=torch.bfloat16, **options):
    return torch.autocast("jax", dtype=dtype, **options)


@pytest.fixture(autouse=True)
def _outside_regions():
    yield
    assert not torch.is_autocast_enabled("jax")
    assert not amp._casts.found


class Casts(TorchDispatchMode):
    """Counts the casts that reach the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


# --- policies, by PyTorch's own lists -----------------------------------------------------------


@functools.cache
def lists():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutocastTestLists("cpu")


def moved_to(device, value, dtype=torch.float16):
    """The arguments of a case elsewhere, those in float16 in another dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(device, dtype if value.dtype == torch.float16 else value.dtype)
    if isinstance(value, list | tuple):
        return type(value)(moved_to(device, v, dtype) for v in value)
    return value


def cases(*names):
    found = []
    for name in names:
        for index, case in enumerate(getattr(lists(), name)):
            if "cudnn" not in case[0] and case[0] != "einsum":  # the case of einsum is wrong
                found.append(pytest.param(name, case, id=f"{name}-{case[0]}-{index}"))
    return found


def options_of(case):
    """The keyword arguments of a case; a list may say instead where it must be skipped."""
    return case[2] if len(case) > 2 and isinstance(case[2], dict) else {}


def function_named(name, kind):
    if kind.startswith("methods"):
        return lambda self, *rest: getattr(self, name)(*rest)
    owners = (torch, torch._C._nn, torch._C._linalg, F)
    return next(getattr(owner, name) for owner in owners if hasattr(owner, name))


def dtypes_in(result):
    values = result if isinstance(result, list | tuple) else [result]
    return {v.dtype for v in values if isinstance(v, torch.Tensor)}


POLICY_LISTS = ("torch_fp16", "nn_fp16", "linalg_fp16", "methods_fp16")
FLOAT32_LISTS = ("torch_fp32", "nn_fp32", "methods_fp32")


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("kind, case", cases(*POLICY_LISTS))
def test_products_run_in_the_dtype_of_the_region(kind, case, dtype):
    function = function_named(case[0], kind)
    args, options = moved_to("jax", case[1]), options_of(case)
    with autocast(dtype):
        result = function(*args, **options)
    assert dtypes_in(result) == {dtype}
    # what is in float32 outside is the dtype of the region inside: nothing else was changed
    with autocast(dtype, enabled=False):
        assert dtypes_in(function(*args, **options)) == {torch.float32}


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("kind, case", cases(*FLOAT32_LISTS))
def test_what_needs_range_runs_in_float32(kind, case, dtype):
    function = function_named(case[0], kind)
    args, options = moved_to("jax", case[1], dtype), options_of(case)
    with autocast(dtype):
        result = function(*args, **options)
    assert dtypes_in(result) == {torch.float32}
    wide = [a.float() if isinstance(a, torch.Tensor) and a.dtype == dtype else a for a in args]
    torch.testing.assert_close(
        result.cpu(),
        function(*to_cpu_device(wide), **options),
        rtol=1e-4,
        atol=1e-4,
        equal_nan=True,
    )


def to_cpu_device(values):
    return [v.cpu() if isinstance(v, torch.Tensor) else v for v in values]


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("kind, case", cases("torch_need_autocast_promote"))
def test_mixed_arguments_run_in_the_widest_dtype(kind, case, dtype):
    function = function_named(case[0], kind)
    args = moved_to("jax", case[1], dtype)
    narrow = [
        a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    ]
    with autocast(dtype):
        assert dtypes_in(function(*args)) == {torch.float32}
        assert dtypes_in(function(*narrow)) == {dtype}


@pytest.mark.parametrize(
    "kind, case", cases("torch_expect_builtin_promote", "methods_expect_builtin_promote")
)
def test_the_rest_promotes_as_it_does_outside(kind, case):
    name, args, expected = case
    if not hasattr(torch if kind.startswith("torch") else torch.Tensor, name):
        pytest.skip(f"{name} is of Python 2")
    with autocast(torch.float16):
        result = function_named(name, kind)(*moved_to("jax", args))
    assert isinstance(result, bool) or result.dtype == expected


def test_every_operator_of_the_table_is_in_this_release():
    for names in amp.POLICIES.values():
        for name in names.split():
            assert variants.overload(name) is not None, name


def test_the_table_is_that_of_the_installed_headers():
    header = torch.__path__[0] + "/include/ATen/autocast_mode.h"
    text = open(header).read()
    policies = {
        "LOWER_PRECISION_FP": "lower_precision",
        "FP32": "float32",
        "FP32_SET_OPT_DTYPE": "float32_output",
        "PROMOTE": "widest",
    }
    for macro, policy in policies.items():
        body = text.partition(f"#define AT_FORALL_{macro}(_)")[2].partition("\n\n")[0]
        calls = [line.strip().rstrip("\\").strip() for line in body.splitlines()]
        names = {c[2:-1].replace(", ", ".") for c in calls if c.startswith("_(")}
        assert names == set(amp.POLICIES[policy].split()), macro


def test_binary_cross_entropy_is_refused():
    p = torch.rand(3, device="jax")
    with autocast(), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(p, p)
    with autocast(), autocast(enabled=False):
        assert F.binary_cross_entropy(p, p).dtype == torch.float32


def test_a_dtype_asked_for_is_given():
    x = torch.ones(3, 3, device="jax", dtype=torch.bfloat16)
    with autocast():
        assert x.sum(dtype=torch.bfloat16).dtype == torch.bfloat16
        assert torch.softmax(x, 0, torch.float64).dtype == torch.float64
        assert x.cumsum(0, dtype=torch.float16).dtype == torch.float16
        assert torch.linalg.norm(x, dtype=torch.float64).dtype == torch.float64


def test_float64_and_integers_are_left_alone():
    x = torch.ones(3, 3, device="jax", dtype=torch.float64)
    n = torch.ones(3, 3, device="jax", dtype=torch.int64)
    with autocast():
        assert (x @ x).dtype == torch.float64
        assert x.exp().dtype == x.sum().dtype == x.norm().dtype == torch.float64
        assert n.sum().dtype == torch.int64


def test_other_lower_precision_dtypes_do_not_mix():
    x = torch.ones(3, device="jax", dtype=torch.float16)
    with autocast(torch.bfloat16), pytest.raises(RuntimeError, match="autocast"):
        torch.addcmul(x, x, x)


def test_tensors_on_the_cpu_are_left_alone():
    x = torch.ones(3, 3)
    with autocast():
        assert (x @ x).dtype == torch.float32


def test_what_operators_are_composed_of_is_left_alone():
    """``cross_entropy`` takes ``log_softmax`` and ``nll_loss``; a norm in it would cast again."""
    x = torch.randn(4, 5, device="jax")
    target = torch.tensor([0, 1, 2, 3], device="jax")
    with autocast():
        low = (x @ x.T)[:, :5]
        assert low.dtype == torch.bfloat16
        assert F.cross_entropy(low, target[: len(low)] % low.shape[1]).dtype == torch.float32
        assert F.normalize(low).dtype == torch.float32


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
    x = torch.randn(2, 3, 8, device="jax")
    with autocast(), torch.no_grad():
        trained = layer(x, **masks)
        evaluated = layer.eval()(x, **masks)
    assert evaluated.dtype == trained.dtype == torch.float32
    assert torch.equal(evaluated.cpu(), trained.cpu())


@pytest.mark.parametrize("options", [{}, {"average_attn_weights": False}, {"need_weights": False}])
def test_attention_blocks_in_evaluation_run_as_in_training(options):
    torch.manual_seed(0)
    block = nn.MultiheadAttention(8, 2, batch_first=True, device="jax")
    x = torch.randn(2, 3, 8, device="jax")
    with autocast(), torch.no_grad():
        trained = block(x, x, x, **options)
        evaluated = block.eval()(x, x, x, **options)
    for a, b in zip(evaluated, trained, strict=True):
        assert (a is None and b is None) or torch.equal(a.cpu(), b.cpu())
    assert evaluated[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", LOWER, ids=str)
def test_einsum_runs_in_the_dtype_of_the_region(dtype):
    x = torch.randn(2, 3, 4, 5, device="jax")
    with autocast(dtype):
        assert torch.einsum("bkhd,bqhd->bqkh", x, x).dtype == dtype


@pytest.mark.slow
def test_attention_runs_in_the_dtype_of_the_region():
    q = torch.randn(1, 2, 4, 8, device="jax", requires_grad=True)
    mask = torch.zeros(4, 4, device="jax")
    with autocast():
        assert F.scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32


def test_the_saved_values_are_of_the_lower_dtype():
    saved = []
    x = torch.randn(4, 4, device="jax", requires_grad=True)
    with (
        autocast(),
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t),
    ):
        x @ x
    assert {t.dtype for t in saved} == {torch.bfloat16}


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
    x = torch.randn(64, 8, device="jax")
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


# --- the cache of cast weights ------------------------------------------------------------------


def test_a_weight_is_cast_once_in_a_region():
    w = nn.Parameter(torch.randn(3, 3, device="jax"))
    x = torch.randn(3, 3, device="jax", dtype=torch.bfloat16)
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
    leaf = torch.randn(3, 3, device="jax", requires_grad=True)
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
    w = nn.Parameter(torch.randn(3, 3, device="jax"))
    with autocast(torch.bfloat16):
        assert (w @ w).dtype == torch.bfloat16
        with autocast(torch.float16):
            assert (w @ w).dtype == torch.float16
        assert (w @ w).dtype == torch.bfloat16


def test_a_cast_made_without_gradients_does_not_take_them_away():
    w = nn.Parameter(torch.randn(3, 3, device="jax"))
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


def test_nothing_is_kept_after_the_region():
    w = nn.Parameter(torch.randn(3, 3, device="jax"))
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
    w = nn.Parameter(torch.randn(3, 3, device="jax"))
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
    w = nn.Parameter(torch.randn(3, 3, device="jax"))
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
    a, b, c, d = torch.randn(4, 8, 8, device="jax")
    with autocast(torch.float16):
        e = torch.mm(a, b)
        with autocast(enabled=False):
            with pytest.raises(RuntimeError, match="scalar type"):
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
assert "torch_jax.amp" not in sys.modules
with torch.autocast("jax", dtype=torch.bfloat16):
    w = torch.ones(3, 3, device="jax", requires_grad=True)
    assert (w @ w).dtype == torch.bfloat16
    from torch_jax import amp
    assert amp._casts.found
assert not amp._casts.found
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
    x = torch.randn(3, 3, device="jax", requires_grad=True)
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

    a = torch.randn(3, 3, device="jax", requires_grad=True)
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
    x = torch.randn(2, 4, device="jax", requires_grad=True)

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
    w = torch.randn(3, 3, device="jax")
    x = torch.randn(5, 3, device="jax")
    with autocast():
        batched = torch.func.vmap(lambda row: w @ row)(x)
        gradient = torch.func.grad(lambda a: (a @ a).float().sum())(w)
    assert batched.dtype == torch.bfloat16
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(batched.cpu().float(), (x @ w.T).cpu(), rtol=0.05, atol=0.05)


def test_in_fx_graphs():
    from torch.fx.experimental.proxy_tensor import make_fx

    w = nn.Parameter(torch.randn(3, 3, device="jax"))

    def function(x):
        with autocast():
            return (x @ w).exp()

    x = torch.randn(3, 3, device="jax")
    graph = make_fx(function)(x)
    assert graph(x).dtype == torch.float32
    torch.testing.assert_close(graph(x).cpu(), function(x).cpu())


# --- under a trace ------------------------------------------------------------------------------


def trace(function, *memories):
    def program(*memories):
        return transfer.value_of(function(*(wrap(m, torch.float32) for m in memories)))

    with jax.enable_x64(True), torch.autograd.set_multithreading_enabled(False):
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


def test_a_traced_step_is_that_of_eager():
    with jax.enable_x64(True), jax.checking_leaks():
        x, w = jax.random.normal(jax.random.key(0), (2, 3, 3), jnp.float32) / 4
        jaxpr = trace(step, x, w)
    assert "bf16" in str(jaxpr)
    eager = step(wrap(x, torch.float32), wrap(w, torch.float32))
    torch.testing.assert_close(run(jaxpr, x, w), eager.cpu(), rtol=2e-2, atol=2e-2)


def test_no_tracer_is_kept_and_no_constant_taken_in_a_region_around_the_trace():
    w = nn.Parameter(torch.randn(3, 3, device="jax"))
    ones = jnp.ones((3, 3), jnp.float32)
    with autocast():
        trace(lambda x: x @ w, ones)
        assert not amp._casts.found
        (wrap(ones, torch.float32) @ w).float().sum().backward()  # no tracer in it
        jaxpr = trace(lambda x: x @ w, ones)
    assert any(c is w.untyped_storage().array for c in jaxpr.consts)
    assert all(c.dtype != jnp.bfloat16 for c in jaxpr.consts)


# --- scaled gradients ---------------------------------------------------------------------------


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


def test_device_says_what_autocast_supports():
    assert set(torch.jax.get_amp_supported_dtype()) == set(LOWER)
    assert torch.amp.is_autocast_available("jax")
