"""Every entry of PyTorch's operator database, in every dtype that the CPU supports, or refuses."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.conformance.checks import CHECKS, errors, first_failure, label, refused
from tests.conformance.gaps import OTHER_LAYOUTS, Gap, gaps_of, judge
from tests.conformance.report import Result
from tests.conformance.samples import (
    LIMIT,
    dtype_name,
    dtypes,
    due,
    entries,
    refusals,
    samples,
    spread,
)


@pytest.mark.parametrize("entry", entries(), ids=lambda e: e.full_name)
def test_operator(entry, record):
    gaps = gaps_of(entry.full_name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [*_operator(entry, gaps), *_errors(entry), *_refused(entry)]
    if entry.full_name not in OTHER_LAYOUTS:
        names = ["", *map(dtype_name, due(entry))]
        record([r for r in results if r.dtype in names or r.row == "refused"])
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


def _refused(entry: Any) -> Iterator[Result]:
    for dtype, sample in refusals(entry):
        if dtype in entry.dtypesIfCUDA:  # which programs of accelerators may count on
            continue
        asked, message = first_failure(refused, entry, [sample])
        if asked:
            yield Result("refused", entry.full_name, dtype_name(dtype), message)
