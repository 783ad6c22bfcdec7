"""Every entry of PyTorch's operator database, in every dtype that the CPU supports."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.conformance.checks import CHECKS, errors, first_failure, label
from tests.conformance.gaps import OTHER_LAYOUTS, Gap, gaps_of, judge
from tests.conformance.report import Result
from tests.conformance.samples import LIMIT, dtype_name, dtypes, due, entries, samples, spread


@pytest.mark.parametrize("entry", entries(), ids=lambda e: e.full_name)
def test_operator(entry, record):
    gaps = gaps_of(entry.full_name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [*_operator(entry, gaps), *_errors(entry)]
    if entry.full_name not in OTHER_LAYOUTS:
        names = ["", *map(dtype_name, due(entry))]
        record([result for result in results if result.dtype in names])
    judge(results, gaps)


def _operator(entry: Any, gaps: list[Gap]) -> Iterator[Result]:
    for dtype in dtypes(entry) if gaps else due(entry):  # a gap is there in any week
        name = dtype_name(dtype)
        cases = samples(entry, dtype, everything=bool(gaps))
        for check, function in CHECKS.items():
            if check == "gradgrad":  # ten times the work of the others
                cases = spread(cases, -(-LIMIT // 4))
            asked, message = first_failure(function, entry, cases)
            if asked:
                yield Result(label(check, dtype), entry.full_name, name, message)


def _errors(entry: Any) -> Iterator[Result]:
    if entry.error_inputs_func is None:
        return
    torch.manual_seed(0)
    asked, message = first_failure(errors, entry, list(entry.error_inputs("cpu")))
    if asked:
        yield Result("errors", entry.full_name, "", message)
