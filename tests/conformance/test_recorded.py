"""Every entry of PyTorch's operator database, recorded: all of its calls make one program.

The forward, in-place and backward questions of float32, or of the first dtype that an entry has.
What passes eagerly must pass recorded; a recording must not be run before its end but by what
needs values.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torch_jax
from tests.conformance.checks import CHECKS, advanced, detached
from tests.conformance.gaps import OTHER_LAYOUTS, gaps_of
from tests.conformance.report import Result
from tests.conformance.samples import LIMIT, dtype_name, dtypes, in_turn, samples, spread
from tests.conformance.unique import is_random
from tests.support.arguments import on, outcome, tensors
from torch_jax.recorded.metrics import COUNTS
from torch_jax.recorded.recorder import ROOT

QUESTIONS = ("forward", "in-place", "backward")

# Entries that run a recording before its end, by what is looked at.
EARLY: dict[str, str] = {
    "a value": """
        allclose combinations cov nn.functional.ctc_loss
        nn.functional.one_hot to_sparse
    """,
    "a value, by PyTorch's formula of the gradient": """
        cumprod linalg.eig linalg.vander masked.cumprod masked.prod
        max.reduction_no_dim median min.reduction_no_dim nanmedian prod
    """,
    "whether a matrix was singular": """
        linalg.cholesky linalg.eigvals linalg.inv linalg.ldl_factor linalg.lu_factor
        linalg.matrix_power linalg.solve linalg.tensorinv linalg.tensorsolve
    """,
    "whether indices are in range, which are not proven to be": """
        _unsafe_masked_index _unsafe_masked_index_put_accumulate cummax cummin mode nanquantile
        nn.functional.linear_cross_entropy.chunked nn.functional.linear_cross_entropy.chunked_none
        quantile repeat_interleave take_along_dim
    """,
}


@pytest.fixture(autouse=True)
def forget_graphs() -> Iterator[None]:
    """Nothing that an entry has recorded is met again."""
    yield
    ROOT.after.clear()


@pytest.mark.parametrize("entry", filter(dtypes, in_turn(0)), ids=lambda e: e.full_name)
def test_recorded(entry, record):
    dtype = dtypes(entry)[0]
    begun, failures = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = samples(entry, dtype)
        before = COUNTS.counted["graphs"]
        with torch_jax.lazy():
            for question in QUESTIONS:
                for number, case in enumerate(cases):
                    asked = CHECKS[question].parts(entry, case, number)
                    called = _told(failures, question, number, asked)
                    begun += [(question, number, asked)] * called
            early = COUNTS.counted["graphs"] - before
        for question, number, asked in begun:
            _told(failures, question, number, asked)
    if entry.full_name not in OTHER_LAYOUTS:
        said = "; ".join(text for _, text in failures)
        record([Result("recorded", entry.full_name, dtype_name(dtype), said)])
    gaps, name = gaps_of(entry.full_name), dtype_name(dtype)
    unlisted = [text for q, text in failures if not any(gap.covers(q, name) for gap in gaps)]
    assert not unlisted, "\n".join(unlisted)
    may = any(entry.full_name in names.split() for names in EARLY.values())
    assert may or not early, f"a recording was run {early} times before its end"
    assert early or LIMIT or not may, "no recording is run early: take it off the list"


def _told(failures: list, question: str, number: int, asked: Any) -> bool:
    """Go on with a question; whether there is more of it. What it raises becomes a failure."""
    try:
        return advanced(asked)[0]
    except Exception as error:
        text = " ".join(str(error).split()) or repr(error)
        said = f"{question}, sample {number}: {type(error).__name__}: {text[:400]}"
        failures.append((question, said))
        return False


RANDOM = [e for e in in_turn(1) if is_random(e.full_name, (), {})]


@pytest.mark.parametrize("entry", RANDOM, ids=lambda e: e.full_name)
def test_draws(entry):
    """A random operator draws what it draws eagerly, to the last bit."""
    cases = spread(samples(entry, dtypes(entry)[0]), 1)
    at_once = [outcome(_drawn, entry, case) for case in cases]
    with torch_jax.lazy():
        recorded = [outcome(_drawn, entry, case) for case in cases]
    for (one, error), (other, other_error) in zip(at_once, recorded, strict=True):
        assert type(error) is type(other_error)
        for ours, theirs in zip(tensors(one), tensors(other), strict=True):
            assert torch.equal(ours.cpu(), theirs.cpu())


def _drawn(entry: Any, case: Any) -> Any:
    torch.manual_seed(5)
    args, kwargs = on("jax", detached(case))
    return entry.op(*args, **kwargs)
