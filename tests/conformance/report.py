"""The table of percentages, and the targets that `make conformance` holds them to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

TARGETS: dict[str, float] = {  # per cent of entries; rows without a target are for information
    "forward float32": 99,
    "forward float64": 0,
    "forward int64": 99,
    "forward int32": 0,
    "forward uint8": 0,
    "forward bool": 99,
    "forward bfloat16": 98,
    "forward float16": 0,
    "forward complex64": 95,
    "in-place": 99,
    "out=": 99,
    "views": 99,
    "backward": 98,
    "gradgrad": 0,
    "errors": 0,
    "modules": 100,
    "optimizers": 100,
}


class Result(NamedTuple):
    """One case: the row it counts for, its entry, its dtype ("" for any), and what went wrong."""

    row: str
    entry: str
    dtype: str
    message: str


def percentages(results: Iterable[Result]) -> dict[str, tuple[int, int]]:
    """For each row the entries without a failure, and all entries that have a case there."""
    failed: dict[str, dict[str, bool]] = defaultdict(dict)
    for result in results:
        entries = failed[result.row]
        entries[result.entry] = entries.get(result.entry, False) or bool(result.message)
    return {row: (sum(not f for f in e.values()), len(e)) for row, e in failed.items()}


def missed(counts: dict[str, tuple[int, int]]) -> list[str]:
    """The rows under their targets."""
    return [row for row, (good, all_) in counts.items() if 100 * good < TARGETS[row] * all_]


def table(counts: dict[str, tuple[int, int]]) -> list[str]:
    """Lines of text, one a row.

    >>> table({"views": (199, 200)})[1].split()
    ['views', '199', '200', '99.5', '99', 'reached']
    """
    lines = [f"{'':18}{'pass':>6}{'of':>6}{'%':>8}{'target':>8}"]
    for row in sorted(counts, key=list(TARGETS).index):
        good, all_ = counts[row]
        target = TARGETS[row]
        verdict = (
            "" if not target else "  MISSED" if row in missed({row: counts[row]}) else "  reached"
        )
        goal = f"{target:g}" if target else ""
        lines.append(f"{row:18}{good:>6}{all_:>6}{100 * good / all_:>8.1f}{goal:>8}{verdict}")
    return lines
