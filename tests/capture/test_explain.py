"""What ``torch_jax.jit`` tells about its programs, and which of them it keeps."""

from __future__ import annotations

import re
import warnings
from typing import Any

import jax
import pytest
import torch
from torch import nn

import torch_jax
from tests.support import ledger
from tests.support.jitted import assert_run, assert_skipped, both
from tests.support.steps import step_of
from tests.support.values import ones
from torch_jax import config


def training(pure: bool = True) -> tuple[nn.Module, Any]:
    model = nn.Linear(64, 64).to("jax")
    optimizer = torch.optim.Adam(model.parameters())
    return model, torch_jax.jit(step_of(model, optimizer), pure=pure)


@both
@pytest.mark.xla_default
def test_lowering_tells_and_changes_nothing(pure):
    model, step = training(pure)
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
    for _ in range(3):
        step(ones(2, 64))
    assert_run(step, pure)


def test_weights_are_no_constants_of_the_program():
    _, step = training()
    text = step.lower(ones(2, 64)).as_text()
    constants = re.findall(r"dense<([^>]*)>", text)
    assert max(map(len, constants)) < 100


def test_explain_tells_what_happened():
    model, step = training()
    assert str(step.explain()).endswith(": not called yet")
    for _ in range(3):
        step(ones(2, 64))
    told = step.explain()
    assert (told.observed, told.recorded, told.reasons) == (1, 1, ())  # the 2nd is an audit
    assert told.captured >= 2 and told.donated >= 2 and told.numbers >= 1
    step(ones(3, 64))
    (reason,) = step.explain().reasons
    assert "float32[2, 64]" in reason and "float32[3, 64]" in reason
    assert f"Python ran again: {reason}" in str(step.explain())
    assert "step" in torch_jax.explain()
    assert torch_jax.explain(step) == step.explain()
    assert torch_jax.explain(torch_jax.jit(model)).name == "Linear"
    with pytest.raises(TypeError, match="is not compiled"):
        torch_jax.explain(len)


def test_explain_counts_the_programs_of_recorded_calls(nothing_is_remembered):
    function = torch_jax.jit(lambda x: (x.sin() @ x.mT).sum())
    x, before = ones(3, 61), ledger.programs()
    for _ in range(2):
        function(x)
    made = ledger.programs() - before
    jax.jit(lambda x: x + 1)(1.0)  # another's
    told = function.explain()
    assert (told.recorded, told.observed) == (2, 0)
    assert told.programs == told.recorded_programs and told.programs.made == made > 0
    assert str(told).startswith(f"{told.name}: 2 calls were recorded: {told.programs}")


def test_the_fourth_time_that_python_runs_again_warns_with_the_causes():
    function = torch_jax.jit(lambda x, n: x * n, pure=True)
    function(ones(), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (2, 3, 4):
            function(ones(), n)
    with pytest.warns(UserWarning, match=r"argument 1 was 4, now it is 5") as caught:
        function(ones(), 5)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(ones(), 6)


# --- what is kept ---------------------------------------------------------------------------------


def test_programs_that_were_not_run_for_the_longest_time_are_dropped():
    function = torch_jax.jit(lambda x: x * 2, pure=True)
    with config.temporarily("jit_cache_size", 2):
        for sizes, observed in (((1, 2, 1, 2), 2), ((3,), 3), ((2,), 3), ((1,), 4), ((1, 2), 4)):
            for size in sizes:
                assert function(ones(size)).tolist() == [2.0] * size
            assert function.explain().observed == observed


def test_settings_count():
    function = torch_jax.jit(lambda x: x @ x, pure=True)
    function(ones(2, 2))
    with config.temporarily("matmul_precision", "medium"):
        function(ones(2, 2))
    assert "setting" in function.explain().reasons[0]


def test_what_is_kept_can_be_cleared():
    function = torch_jax.jit(lambda x: x * 2, pure=True)
    for _ in range(2):
        function(ones())
    function.clear_cache()
    function(ones())
    assert_skipped(function, kinds=2)


# --- modes ----------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_results_belong_to_the_mode_of_the_call(mode, pure):
    weight = ones().requires_grad_()
    function = torch_jax.jit(lambda x: x * weight, pure=pure)
    for _ in range(3):
        with mode():
            ours, theirs = function(ones()), ones() * weight
        assert ours.requires_grad == theirs.requires_grad
        assert ours.is_inference() == theirs.is_inference()
        assert ours.is_leaf == theirs.is_leaf
    assert function(ones()).requires_grad
    assert_run(function, pure, kinds=1 if mode is torch.enable_grad else 2)


@both
def test_modes_set_inside_end_inside(pure):
    @torch_jax.jit(pure=pure)
    def function(x):
        with torch.no_grad():
            y = x * 2
        return y, x * 2

    x = ones().requires_grad_()
    for _ in range(3):
        without, within = function(x)
        assert not without.requires_grad
        assert within.requires_grad
