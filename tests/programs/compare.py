"""The first difference between two observations."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.programs.observe import Again, Seen, Values
from tests.support.compare import TOLERANCE


def first_difference(actual: Any, expected: Any) -> str | None:
    """Where the first one differs from the second, in words; None where it does not.

    Version counters come last: whoever reads of one knows that all else is equal.
    """
    return difference(actual, expected, "", "_version") or difference(actual, expected, "", "")


def difference(actual: Any, expected: Any, path: str, without: str) -> str | None:
    """The first difference, facts of one name left out."""
    if type(actual) is not type(expected):
        return f"{path}: {actual!r}, not {expected!r}"
    if isinstance(expected, Seen):
        return _facts(actual, expected, path, without)
    if isinstance(expected, Again):
        return None if actual == expected else f"{path}: another object than plain calls give"
    if isinstance(expected, Values):
        return _values(actual.tensor, expected.tensor, path)
    if isinstance(expected, list):
        return _elements(actual, expected, path, without)
    equal = _close(actual, expected) if isinstance(expected, float) else actual == expected
    return None if equal else f"{path}: {actual!r}, not {expected!r}"


def _facts(actual: Seen, expected: Seen, path: str, without: str) -> str | None:
    if actual.kind != expected.kind:
        return f"{path}: a {actual.kind}, not a {expected.kind}"
    names, right = ([name for name, _ in seen.facts] for seen in (actual, expected))
    for (name, one), (_, other) in zip(actual.facts, expected.facts, strict=False):
        found = None if name == without else difference(one, other, f"{path}/{name}", without)
        if found:
            return found
    return None if names == right else f"{path}: it has {names}, not {right}"


def _elements(actual: list, expected: list, path: str, without: str) -> str | None:
    for index, (one, other) in enumerate(zip(actual, expected, strict=False)):
        found = difference(one, other, f"{path}/{index}", without)
        if found:
            return found
    if len(actual) != len(expected):
        return f"{path}: {len(actual)} elements, not {len(expected)}"
    return None


def _close(actual: float, expected: float) -> bool:
    if math.isnan(expected) or expected == 0:
        return repr(actual) == repr(expected)  # -0.0 is not 0.0
    return math.isclose(actual, expected, rel_tol=TOLERANCE[torch.float32])


def _values(actual: torch.Tensor, expected: torch.Tensor, path: str) -> str | None:
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return None  # dtype and shape are facts of their own
    bound = TOLERANCE.get(expected.dtype, 0.0)
    largest = expected.abs().nan_to_num(posinf=0).max().item() if bound and expected.numel() else 0
    close = torch.allclose(
        actual, expected, rtol=bound, atol=bound * max(largest, 1.0), equal_nan=True
    )
    if close and expected.is_floating_point():
        zeros = (expected == 0) & (actual == 0)
        close = torch.equal(actual.signbit() & zeros, expected.signbit() & zeros)
    return None if close else f"{path}: {actual.tolist()}, not {expected.tolist()}"
