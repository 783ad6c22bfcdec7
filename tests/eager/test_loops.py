"""Loops as people write them: the CPU's results, and no compilation per step."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
import torch

import torch_jax
from benchmarks.loops import PROGRAMS
from tests.support import ledger
from tests.support.compare import assert_same
from torch_jax.core import log
from torch_jax.dispatch import ladder
from torch_jax.eager import given_numbers, kernel

# How many operators a program may compile in its first run; loops over slices of one size compile
# for the first slice, loops over sizes once for each size and operator.
COMPILES = {
    "sum_of_rows": 3,
    "reduce_each_row": 3,
    "write_each_row": 3,
    "minibatches": 3,
    "minibatches_with_gradients": 5,
    "gradient_of_rows": 10,
    "select_by_index": 4,
    "stack_of_parts": 4,
    "recurrent_cell": 5,
    "audio_windows": 3,
    "add_to_columns": 3,
    "strided_columns": 3,
    "sliding_sum": 3,
    "boolean_masks": 2,
    "softmax_at_lengths": 30,
    "grown_by_cat": 60,
    "dynamic_cache": 2 * 10 + 1,
    "roll_each": 1,
    "topk_each": 20,
    "arange_each": 40,
    "greedy_decoding": 4,
    "levenshtein": 8,
    "cumulative_reward": 4,
    "sinkhorn_rows_and_columns": 7,
    # data-dependent sizes: once for each size that comes up
    "beam_search": 3 * 12 + 8,
    "past_so_far": 3 * 20 + 2,
    "non_maximum_suppression": 430,
    "tokenizer_loop": 6 * 10,
    "k_means": 24,
    "padded_batches": 6 * 15 + 3,
}
_SLOW = ("past_so_far", "non_maximum_suppression", "tokenizer_loop", "padded_batches")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in _SLOW)) for n in PROGRAMS]
)
def test_a_loop(name, monkeypatch):
    torch.ones(1, device="jax")
    ladder.forget_compiled()
    compiled: list[Any] = []
    monkeypatch.setattr(kernel, "compile_listeners", [compiled.append])
    actual = PROGRAMS[name]("jax")
    assert_same(actual, PROGRAMS[name]("cpu"), strides=False)
    assert len(compiled) <= COMPILES[name], [str(op) for op in compiled]
    compiled.clear()
    PROGRAMS[name]("jax")
    assert not compiled


@pytest.mark.parametrize("number", [3, 2.25, 1 + 2j])
def test_a_number_that_comes_again_compiles_nothing(number, monkeypatch):
    """It is kept as an array then, weakly typed as the number itself."""
    monkeypatch.setattr(given_numbers, "_numbers", {})
    monkeypatch.setattr(given_numbers, "_seen", set())
    x = torch.ones(3, dtype=torch.complex64, device="jax")
    first = x * number
    before = ledger.programs()
    again = [x * number for _ in range(3)]
    assert ledger.programs() == before and given_numbers._numbers
    assert all(one.dtype == first.dtype and one.equal(first) for one in again)


@pytest.mark.slow
def test_a_line_that_goes_on_compiling_is_named_once(caplog, monkeypatch):
    monkeypatch.setattr(log, "_forms", type(log._forms)())
    monkeypatch.setattr(log, "_loops", {})
    ladder.forget_compiled()
    shown = io.StringIO()
    with caplog.at_level(logging.WARNING, "torch_jax"), torch_jax.trace_ops(shown):
        for n in range(1, 40):
            torch.ones(n, device="jax").neg().abs()
    texts = [r.getMessage() for r in caplog.records if " was compiled for " in r.getMessage()]
    assert len(texts) == 1
    assert __file__ in texts[0] and "jit(dynamic=" in texts[0]
    assert texts[0] in shown.getvalue()
