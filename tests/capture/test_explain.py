"""Reports of ``torch_jax.jit`` on its programs, and the number of programs that it keeps."""

from __future__ import annotations

import re
import warnings

import jax
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_jax
from tests.support import ledger
from tests.support.jitted import assert_run, assert_skipped, both
from tests.support.steps import mlp, step_of
from tests.support.values import ones
from torch_jax import config


def training(pure: bool = True):
    model = nn.Linear(64, 64).to("jax")
    optimizer = torch.optim.Adam(model.parameters())
    return model, torch_jax.jit(step_of(model, optimizer), pure=pure)


@both
@pytest.mark.xla_default
def test_lowering_tells_and_changes_nothing(pure):
    model, step = training(pure)
    before = model.weight.detach().cpu().clone()
    lowered = step.lower(ones(2, 64))
    assert torch.equal(model.weight.detach().cpu(), before) and model.weight.grad is None
    assert "stablehlo.dot_general" in lowered.as_text() and "HloModule" in lowered.as_text("hlo")
    assert lowered.cost_analysis()["flops"] > 2 * 64 * 64
    assert lowered.memory_analysis().argument_size_in_bytes > 4 * 64 * 64
    with pytest.raises(ValueError, match="dialect"):
        lowered.as_text("mlir")
    for _ in range(3):
        step(ones(2, 64))
    assert_run(step, pure)


def test_weights_are_no_constants_of_the_program():
    constants = re.findall(r"dense<([^>]*)>", training()[1].lower(ones(2, 64)).as_text())
    assert max(map(len, constants)) < 100


def test_lowering_looks_at_no_index():
    table, index = nn.Embedding(5, 3).to("jax"), torch.tensor([1, 2, 4]).to("jax")

    def run(i):
        return checkpoint(lambda i: table(i * 1).sin(), i, use_reentrant=False)

    assert "gather" in torch_jax.lower(run, index).as_text()


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
    assert "step" in torch_jax.explain() and torch_jax.explain(step) == step.explain()
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
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(1, 5):
            function(ones(), n)
        with pytest.warns(UserWarning, match=r"argument 1 was 4, now it is 5") as caught:
            function(ones(), 5)
        function(ones(), 6)
    assert caught[0].filename == __file__


def test_equal_calls_give_the_hint_that_pure_would_pay():
    model = mlp()
    step = torch_jax.jit(step_of(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in range(53):
            assert ("jit(pure=True) would skip it" in str(step.explain())) == (call > 50)
            step(ones(3, 4))
    assert step.explain().recorded == 53


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
    for call in range(3):
        if call == 2:
            function.clear_cache()
        function(ones())
    assert_skipped(function, kinds=2)


# --- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_results_belong_to_the_mode_of_the_call(mode, agree):
    def program(compile):
        weight = ones().requires_grad_()
        function = compile(lambda x: x * weight)
        for _ in range(3):
            with mode():
                y = function(ones())
            yield y, function(ones())

    agree(program, kinds=1 if mode is torch.enable_grad else 2)


def test_modes_set_inside_end_inside(agree):
    def program(compile):
        def function(x):
            with torch.no_grad():
                y = x * 2
            return y, x * 2

        function = compile(function)
        for _ in range(3):
            yield function(ones().requires_grad_())

    agree(program)
