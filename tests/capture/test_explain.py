"""What ``torch_jax.jit`` tells about its programs, and which of them it keeps."""

from __future__ import annotations

import re
import types
import warnings
from typing import Any

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_jax
from tests.support import ledger
from tests.support.steps import step_of
from tests.support.values import ones
from torch_jax import config
from torch_jax.compiler import program

# --- looking inside -------------------------------------------------------------------------------


def training() -> tuple[nn.Module, Any]:
    model = nn.Linear(64, 64).to("jax")
    optimizer = torch.optim.Adam(model.parameters())

    return model, torch_jax.jit(step_of(model, optimizer))


@pytest.mark.xla_default
def test_lowering_tells_and_changes_nothing(programs_of_traces):
    model, step = training()
    before = model.weight.detach().cpu().clone()
    lowered = step.lower(ones(2, 64))
    assert torch.equal(model.weight.detach().cpu(), before)
    assert model.weight.grad is None
    assert "stablehlo.dot_general" in lowered.as_text()
    assert "HloModule" in lowered.as_text("hlo")
    assert lowered.cost_analysis()["flops"] > 2 * 64 * 64
    assert lowered.memory_analysis().argument_size_in_bytes > 4 * 64 * 64
    with pytest.raises(ValueError, match="dialect"):
        lowered.as_text("mlir")
    step(ones(2, 64))
    assert step.explain().traces == 1 and len(programs_of_traces) <= 1


def test_weights_are_no_constants_of_the_program():
    _, step = training()
    text = step.lower(ones(2, 64)).as_text()
    constants = re.findall(r"dense<([^>]*)>", text)
    assert max(map(len, constants)) < 100


@pytest.mark.slow
def test_explain_tells_what_happened(programs_of_traces):
    program.clear_executables()
    model, step = training()
    step(ones(2, 64))
    step(ones(2, 64))
    told = step.explain()
    assert (told.traces, told.recorded) == (1, 0)
    assert len(programs_of_traces) == 1 <= told.programs.made
    assert told.captured >= 2 and told.donated >= 2 and told.lifted >= 1
    step(ones(3, 64))
    model.eval()
    model.train()
    (retrace,) = step.explain().retraces
    assert "float32[2, 64]" in retrace.reason and "float32[3, 64]" in retrace.reason
    assert "traced again" in str(step.explain())
    assert "step" in torch_jax.explain()
    assert torch_jax.explain(step) == step.explain()
    with pytest.raises(TypeError, match="is not compiled"):
        torch_jax.explain(len)


def test_explain_begins_with_calls_that_were_recorded():
    function = torch_jax.jit(lambda x: (x.sin() @ x.mT).sum(), fallback="record")
    assert str(function.explain()).endswith(": neither recorded nor traced")
    x, before = ones(3, 61), ledger.programs()
    with config.temporarily("jit_recorded_calls", 8):
        for _ in range(2):
            function(x)
    made = ledger.programs() - before
    jax.jit(lambda x: x + 1)(1.0)  # another's
    told = function.explain()
    assert (told.recorded, told.traces) == (2, 0)
    assert told.programs == told.recorded_programs and told.programs.made == made > 0
    text = str(told)
    assert text.startswith(f"{told.name}: 2 calls were recorded: {told.programs}")
    assert "traces" not in text


def test_the_fourth_retrace_warns_with_the_cause():
    settings = types.SimpleNamespace(scale=1)
    function = torch_jax.jit(lambda x: x * settings.scale)
    function(ones())
    for index in range(1, 4):
        settings.scale = 1 + index
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(ones())
    settings.scale = 9
    with pytest.warns(UserWarning, match=r"scale was 4, now it is 9") as caught:
        function(ones())
    assert caught[0].filename == __file__
    settings.scale = 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(ones())


# --- caches ---------------------------------------------------------------------------------------


def test_old_traces_are_dropped():
    function = torch_jax.jit(lambda x: x * 2)
    bound = config.get("jit_cache_size")
    config.set("jit_cache_size", 2)
    try:
        for size in (1, 2, 1, 2):
            function(ones(size))
        assert function.explain().traces == 2
        function(ones(3))  # the one for size 1 goes
        function(ones(2))
        assert function.explain().traces == 3
        function(ones(1))
        assert function.explain().traces == 4
    finally:
        config.set("jit_cache_size", bound)


def test_a_trace_in_use_is_not_the_one_to_go():
    function = torch_jax.jit(lambda x: x * 2)
    bound = config.get("jit_cache_size")
    config.set("jit_cache_size", 2)
    try:
        for size in (1, 2, 1, 3, 1):
            function(ones(size))
        assert function.explain().traces == 3
    finally:
        config.set("jit_cache_size", bound)


def test_settings_count():
    function = torch_jax.jit(lambda x: x @ x)
    function(ones(2, 2))
    precision = config.get("matmul_precision")
    config.set("matmul_precision", "medium")
    try:
        function(ones(2, 2))
        assert function.explain().traces == 2
        assert "setting" in function.explain().retraces[0].reason
    finally:
        config.set("matmul_precision", precision)


def test_the_cache_can_be_cleared():
    function = torch_jax.jit(lambda x: x * 2)
    function(ones())
    function.clear_cache()
    function(ones())
    assert function.explain().traces == 2


@pytest.mark.parametrize("verify", [True, 3])
def test_verification_runs_calls_both_ways(verify):
    model, _ = training()
    function = torch_jax.jit(lambda x: model(x).square().sum(), verify=verify)
    expected = model(ones(2, 64)).square().sum().item()
    for _ in range(5):
        assert function(ones(2, 64)).item() == pytest.approx(expected)


# --- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_results_belong_to_the_mode_of_the_call(mode):
    weight = ones().requires_grad_()
    function = torch_jax.jit(lambda x: x * weight)
    for _ in range(2):
        with mode():
            ours, theirs = function(ones()), ones() * weight
        assert ours.requires_grad == theirs.requires_grad
        assert ours.is_inference() == theirs.is_inference()
        assert ours.is_leaf == theirs.is_leaf


def test_modes_set_inside_end_inside():
    @torch_jax.jit
    def function(x):
        with torch.no_grad():
            y = x * 2
        return y, x * 2

    x = ones().requires_grad_()
    for _ in range(2):
        without, within = function(x)
        assert not without.requires_grad
        assert within.requires_grad


class Attention(nn.Linear):
    def forward(self, x):
        q = super().forward(x)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


@pytest.mark.slow
@pytest.mark.traced_at_once(fallback="record")
def test_what_jax_asks_of_libraries_is_none_of_the_functions():
    """JAX asks opt_einsum for the order of products, of sizes that no other test traces."""
    model = Attention(24, 24).to("jax")
    step = torch_jax.jit(step_of(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    x = torch.randn(2, 4, 150, 24, device="jax")
    for _ in range(3):
        step(x)
    assert step.explain().traces == 1
