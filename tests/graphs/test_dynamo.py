"""``torch.compile(backend="jax")``, held against eager PyTorch on the CPU."""

from __future__ import annotations

import copy
import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.compare import assert_same, to_jax
from tests.support.graphs import check, compiled
from tests.support.processes import output
from tests.support.values import randn
from torch_jax import config


@pytest.mark.slow
def test_attention_has_tangents():
    def function(x):
        return torch.func.jvp(lambda x: F.scaled_dot_product_attention(x, x, x), (x,), (x,))

    x = randn(1, 1, 3, 2)
    assert_same(compiled(function)(x), [result.cpu() for result in function(x)])


# --- shapes and types -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_changing_sizes_are_specialised_and_logged(dynamic, caplog):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    ours = copy.deepcopy(model).to("jax")
    run = compiled(ours, dynamic=dynamic)
    with caplog.at_level(logging.INFO, "torch_jax"):
        for rows in (3, 5, 7, 5, 9):
            x = torch.randn(rows, 4)
            actual, expected = run(to_jax(x)), model(x)
            assert_same(actual, expected)
            actual.sum().backward()
            expected.sum().backward()
    for p, q in zip(ours.parameters(), model.parameters(), strict=True):
        assert_same(p.grad, q.grad, scale=10)
    lines = [line for line in _observations(caplog) if "forward" in line]
    changed = [line[-1] for line in lines if "now it is" in line]
    assert changed == (["5", "7", "9"] if dynamic else ["7", "9"])


def _observations(caplog):
    """Return why each graph ran operator by operator, and was compiled."""
    return [r.getMessage() for r in caplog.records if "observed graph" in r.getMessage()]


def test_sizes_that_are_too_many_to_keep_are_told_and_the_oldest_forgotten(caplog):
    inputs = [torch.ones(rows, device="jax") for rows in (3, 4, 3, 5, 3, 6, 3, 4)]
    run = compiled(lambda x: x * 2, dynamic=True)
    kept = torch_jax.config.get("jit_cache_size")
    torch_jax.config.set("jit_cache_size", 2)
    try:
        with pytest.warns(match="2 sets of sizes.*argument 0 was 3, now it is 4.*Pad") as warned:
            with caplog.at_level(logging.INFO, "torch_jax"):
                for x in inputs:  # three rows are never what was called longest ago
                    assert_same(run(x), torch.full(x.shape, 2.0))
    finally:
        torch_jax.config.set("jit_cache_size", kept)
    assert [line[-1] for line in _observations(caplog)][1:] == list("4564")
    assert len([w for w in warned if "sets of sizes" in str(w.message)]) == 1


def test_results_on_device_meta():
    def function(x):
        return x + 1, torch.empty(3, 4, device="meta").t()

    run = compiled(function)
    for _ in range(2):
        actual, meta = run(torch.ones(2, device="jax"))
        assert_same(actual, torch.full((2,), 2.0))
        assert (meta.device.type, meta.stride()) == ("meta", (1, 4))


def test_sizes_in_the_program_and_among_its_results():
    def function(x):
        rows = x.shape[0]
        return x.view(-1) / rows, torch.arange(rows, device=x.device), rows * 2

    run = compiled(function, dynamic=True)
    for rows in (3, 5, 4):
        x = torch.randn(rows, 2)
        torch._dynamo.mark_dynamic(x, 0)
        assert_same(run(to_jax(x)), function(x))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_dtypes(dtype):
    x = torch.randn(3, 3).to(dtype).requires_grad_()
    check(lambda x: x * 2 + x.t(), x)
    check(lambda x: (x > 1, x.long().sum()) if not dtype.is_complex else x.conj().abs(), x.detach())


def test_python_numbers_and_empty_tensors():
    check(lambda x, n, f: (x * n + f, x[:0].sum(0)), torch.randn(3, 2), 3, 0.5)
    check(lambda x: x.sum(0), torch.randn(0, 2))


def constants(x):
    return x * torch.tensor(3.0), x + torch.tensor([1.0, 2.0, 3.0]).to(x.device)


def test_constants_made_of_numbers_in_the_function():
    check(constants, torch.randn(3))
    made = compiled(lambda x: (x + 1, torch.tensor(2.0) + 1))(torch.ones(2, device="jax"))[1]
    assert made.device.type == "cpu" and made.item() == 3


@pytest.mark.slow
def test_flex_attention_and_its_gradients():
    from torch.nn.attention.flex_attention import flex_attention

    def function(q, k):
        return flex_attention(q, k, k, score_mod=lambda score, b, h, i, j: score + (i - j) * 0.1)

    q, k = (torch.randn(1, 2, 8, 4) for _ in range(2))
    expected = function(q, k)
    leaves = to_jax([q.requires_grad_(), k.requires_grad_()])
    actual = compiled(function)(*leaves)
    assert_same(actual, expected, strides=False)
    bias = (torch.arange(8)[:, None] - torch.arange(8)) * 0.1
    same = F.scaled_dot_product_attention(q, k, k, attn_mask=bias)  # the CPU has no gradients
    wanted = torch.autograd.grad(same.square().sum(), (q, k))
    assert_same(torch.autograd.grad(actual.square().sum(), leaves), wanted, False, scale=5)


# --- graph breaks and what cannot be compiled -----------------------------------------------------


def breaks(function: Any, *args: Any) -> int:
    return torch._dynamo.explain(function)(*args).graph_break_count


@pytest.mark.slow
def test_item_breaks_the_graph():
    def function(x):
        y = x.sin()
        return y * 2 if y.sum().item() > 0 else y - 1

    check(function, torch.ones(3), fullgraph=False)
    check(function, -torch.ones(3), fullgraph=False)
    assert breaks(function, torch.ones(3, device="jax")) == 1
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.UserError, match=r"data-dependent"):
        compiled(function)(torch.ones(3, device="jax"))


def test_sizes_that_depend_on_data_break_the_graph_or_cut_it(caplog):
    """Dynamo takes sizes of values into a graph if asked, as ``fullgraph=True`` does."""

    def function(x, y):
        z = (x + 1)[x > 0] * 2
        y.add_(1)
        return z * y.new_ones(int((x > 0).sum()))

    inputs = torch.tensor([1.0, -1.0, 2.0]), torch.zeros(2)
    check(function, *inputs, fullgraph=False)
    torch._dynamo.reset()
    with caplog.at_level(logging.WARNING, "torch_jax"):
        check(function, *inputs)
    assert [one for one in caplog.records if "a value is looked at" in one.getMessage()]


def test_an_operator_of_the_cpu_cuts_the_graph(caplog):
    with torch.library._scoped_library("torch_jax_test", "FRAGMENT") as library:
        library.define("of_cpu(Tensor x) -> Tensor")
        library.impl("of_cpu", lambda x: torch.from_numpy(np.sin(x.numpy())), "CPU")
        library.impl("of_cpu", lambda x: torch.empty_like(x), "Meta")
        run = compiled(lambda x: torch.ops.torch_jax_test.of_cpu(x + 1) * 2)
        x = torch.tensor([1.0, 2.0, 3.0])
        with config.temporarily("cpu_fallback", "warn"), caplog.at_level(logging.WARNING):
            with pytest.warns(match="runs on the CPU"):
                results = [run(to_jax(x)) for _ in range(2)]
        assert ["a value is looked at" in r.getMessage() for r in caplog.records] == [True]
    for result in results:
        assert_same(result, (x + 1).sin() * 2)


def test_a_graph_of_numbers_alone():
    def function(a, b):
        return torch.ops.aten.add(a, b), torch.ops.aten.mul(b, a)

    torch.testing.assert_close(compiled(function)(4, 3.25), function(4, 3.25))


def test_an_index_out_of_range_is_an_error():
    table = torch.randn(4, 2)
    run = compiled(F.embedding)
    assert_same(run(torch.tensor([3], device="jax"), to_jax(table)), table[3:])
    with pytest.raises(IndexError):
        run(torch.tensor([4], device="jax"), to_jax(table))


def test_an_assertion_about_values_is_an_error():
    one_hot = compiled(lambda x: F.one_hot(x, 3))  # asserts that classes are in range
    x = torch.tensor([0, 2])
    assert_same(one_hot(x.to("jax")), F.one_hot(x, 3))
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        one_hot(x.to("jax") + 1)


def test_options_and_modes_are_checked():
    x = torch.ones(3, device="jax")
    options = {"xla": {"xla_cpu_enable_fast_math": True}}
    assert_same(compiled(torch.sin, options=options)(x), torch.ones(3).sin())
    assert_same(compiled(torch.cos, mode="reduce-overhead")(x), torch.ones(3).cos())
    for wrong in (
        {"options": {"dnoate": True}}, {"options": {"donate": "yes"}}, {"options": {"xla": "fast"}},
        {"mode": "fastest"},
    ):  # fmt: skip
        with pytest.raises(
            Exception, match="torch.compile\\(backend='jax'\\) (knows|takes)|Unrecognized mode"
        ):
            compiled(torch.tan, **wrong)(x)


# --- contexts -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_grad_and_inference_mode():
    model = nn.Linear(3, 2)
    ours = copy.deepcopy(model).to("jax")
    run = compiled(ours)
    x = torch.randn(4, 3)
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            result = run(to_jax(x))
            assert result.requires_grad == (context is torch.enable_grad)
            assert result.is_inference() == (context is torch.inference_mode)
            assert_same(result, model(x))


@pytest.mark.slow
def test_autocast():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)).to("jax")
    run = compiled(model)
    x = randn(3, 4)
    for _ in range(2):
        with torch.autocast("jax", torch.bfloat16):
            expected, actual = model(x), run(x)
        assert actual.dtype == torch.bfloat16
        assert_same(actual, expected.detach().cpu(), scale=2)
        gradients = [
            torch.autograd.grad(r.float().sum(), model[0].weight)[0] for r in (expected, actual)
        ]
        assert_same(gradients[1], gradients[0].cpu(), scale=1000)
    assert_same(run(x), model(x).detach().cpu())


def test_without_a_backend_named_this_one_is_taken():
    model = nn.Linear(3, 2)
    ours = copy.deepcopy(model).to("jax")
    x = torch.randn(4, 3)
    assert_same(torch.compile(ours)(to_jax(x)), model(x))
    assert_same(torch.compile(ours, mode="reduce-overhead")(to_jax(x)), model(x))


def test_a_mixed_graph_keeps_cpu_tensors_on_the_cpu():
    def function(x, scale):
        y = x * scale
        return y, scale + 1

    x, scale = torch.randn(3), torch.tensor(2.0)
    y, more = compiled(function)(to_jax(x), scale)
    assert_same(y, x * 2)
    assert more.device.type == "cpu" and more.item() == 3


@pytest.mark.slow
@pytest.mark.parametrize("forward", ["eager", "compiled"])
def test_compiled_autograd(forward):
    """The backward pass itself is caught by Dynamo, and becomes one graph."""
    from torch._dynamo import compiled_autograd

    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(3, 4)
    ours = copy.deepcopy(model).to("jax")
    model(x).square().sum().backward()
    with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="jax")):
        run = ours if forward == "eager" else compiled(ours)
        run(to_jax(x)).square().sum().backward()
    for ours_, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        assert_same(ours_.grad, theirs.grad, strides=False)


def test_within_a_function_under_torch_jax_jit():
    import torch_jax

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    ours = copy.deepcopy(model).to("jax")
    run = compiled(ours)
    x = torch.randn(2, 4)
    run(to_jax(x))
    assert_same(torch_jax.jit(lambda x: run(x) * 2)(to_jax(x)), model(x) * 2)


@pytest.mark.slow
def test_the_backend_is_found_without_an_import_and_dynamo_is_not_imported_for_it():
    code = """
import sys, torch
assert "torch._dynamo" not in sys.modules and "jax" not in sys.modules
x = torch.ones(3, device="jax")
assert "torch._dynamo" not in sys.modules
assert "jax" in torch._dynamo.list_backends()
print(torch.compile(lambda x: x + 1, backend="jax")(x).cpu().tolist())
from torch._dynamo.device_interface import get_interface_for_device
assert get_interface_for_device("jax").device_count() == 1
"""
    assert output("-c", code, new=True) == "[2.0, 2.0, 2.0]"
