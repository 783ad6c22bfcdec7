"""The first difference between two observations."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from tests.support.compare import TOLERANCE
from tests.support.observe import Again, Seen, Values


class How(NamedTuple):
    """The names of facts that are left out, and a tolerance in place of those of the dtypes.

    Where a tolerance is given, zero has no sign.
    """

    without: tuple[str, ...] = ()
    tolerance: float = 0.0

    def of(self, dtype: torch.dtype) -> float:
        """Return the tolerance of a dtype; whole numbers have none."""
        return TOLERANCE.get(dtype, 0.0) and (self.tolerance or TOLERANCE[dtype])


def first_difference(actual: Any, expected: Any) -> str | None:
    """Return where the first one differs from the second, in words; None where it does not.

    Version counters come last: whoever reads of one knows that all else is equal.
    """
    return difference(actual, expected, How(("_version",))) or difference(actual, expected, How())


def difference(actual: Any, expected: Any, how: How, path: str = "") -> str | None:
    """Return the first difference in words."""
    if type(actual) is not type(expected):
        return f"{path}: {actual!r}, not {expected!r}"
    if isinstance(expected, Seen):
        return _facts(actual, expected, how, path)
    if isinstance(expected, Again):
        return None if actual == expected else f"{path}: another object than plain calls give"
    if isinstance(expected, Values):
        return _values(actual.tensor, expected.tensor, how, path)
    if isinstance(expected, list):
        return _elements(actual, expected, how, path)
    equal = _close(actual, expected, how) if isinstance(expected, float) else actual == expected
    return None if equal else f"{path}: {actual!r}, not {expected!r}"


def _facts(actual: Seen, expected: Seen, how: How, path: str) -> str | None:
    if actual.kind != expected.kind:
        return f"{path}: a {actual.kind}, not a {expected.kind}"
    names, right = ([name for name, _ in seen.facts] for seen in (actual, expected))
    for (name, one), (_, other) in zip(actual.facts, expected.facts, strict=False):
        found = None if name in how.without else difference(one, other, how, f"{path}/{name}")
        if found:
            return found
    return None if names == right else f"{path}: it has {names}, not {right}"


def _elements(actual: list, expected: list, how: How, path: str) -> str | None:
    for index, (one, other) in enumerate(zip(actual, expected, strict=False)):
        found = difference(one, other, how, f"{path}/{index}")
        if found:
            return found
    if len(actual) != len(expected):
        return f"{path}: {len(actual)} elements, not {len(expected)}"
    return None


def _close(actual: float, expected: float, how: How) -> bool:
    if math.isnan(expected) or (expected == 0 and not how.tolerance):
        return repr(actual) == repr(expected)  # -0.0 is not 0.0
    return math.isclose(actual, expected, rel_tol=how.of(torch.float32))


def _values(actual: torch.Tensor, expected: torch.Tensor, how: How, path: str) -> str | None:
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return None  # dtype and shape are facts of their own
    bound = how.of(expected.dtype)
    largest = expected.abs().nan_to_num(posinf=0).max().item() if bound and expected.numel() else 0
    close = torch.allclose(
        actual, expected, rtol=bound, atol=bound * max(largest, 1.0), equal_nan=True
    )
    if close and not how.tolerance and expected.is_floating_point():
        zeros = (expected == 0) & (actual == 0)
        close = torch.equal(actual.signbit() & zeros, expected.signbit() & zeros)
    return None if close else f"{path}: {actual.tolist()}, not {expected.tolist()}"
