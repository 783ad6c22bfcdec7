"""Loops as people write them: the CPU's results, and no compilation per step."""

from __future__ import annotations

import io
import logging

import pytest
import torch

import torch_jax
from benchmarks.loops import PROGRAMS
from tests.support import ledger
from tests.support.compare import assert_same
from torch_jax import config
from torch_jax.core import log
from torch_jax.dispatch import ladder
from torch_jax.eager import given_numbers


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_is_the_cpus_and_compiles_nothing(name):
    with config.temporarily("eager_on_cpu", "torch"):
        before = ledger.programs()
        actual = PROGRAMS[name]("jax")
        assert ledger.programs() == before
        assert_same(actual, PROGRAMS[name]("cpu"))


@pytest.mark.parametrize("number", [3, 2.25, 1 + 2j])
def test_a_number_that_comes_again_compiles_nothing(number, monkeypatch):
    """It is kept as an array then, weakly typed as the number itself."""
    monkeypatch.setattr(given_numbers, "_numbers", {})
    x = torch.ones(3, dtype=torch.complex64, device="jax")
    first = x * number
    before = ledger.programs()
    again = [x * number for _ in range(3)]
    assert ledger.programs() == before and any(given_numbers._numbers.values())
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
