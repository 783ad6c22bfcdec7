"""The table of percentages, and the targets that `make conformance` holds them to."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

# A number of weeks since 1970: each entry is asked for some dtypes, in the next week for others.
# Where it is empty, for all.
WEEK = os.environ.get("CONFORMANCE_WEEK", "")
# The number of a commit, of which a third of the entries is asked. Where it is empty, all.
COMMIT = os.environ.get("CONFORMANCE_COMMIT", "")

TARGETS: dict[str, float] = {  # per cent of cases; rows without a target are for information
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
    "refused": 100,
    "modules": 100,
    "optimizers": 100,
    "recorded": 0,
    "interpreted": 0,
    "compiled": 0,
    "vmap": 0,
    "jax derivatives": 0,
}


class Result(NamedTuple):
    """One case: the row it counts for, its entry, its dtype ("" for any), and what went wrong.

    A forward row has one case for each entry; the others have one for each entry and dtype.
    """

    row: str
    entry: str
    dtype: str
    message: str


class Count(NamedTuple):
    """How many of a row's cases pass, and how many of its entries in all their dtypes."""

    passed: int
    cases: int
    entries_passed: int
    entries: int


def lines(results: Iterable[Result], conditions: dict[str, object]) -> list[str]:
    """A run as lines of JSON for ``docs/conformance.py``: what it was of, and each case.

    >>> lines([Result("vmap", "add", "", "raises TypeError")], {"samples": 3})
    ['{"samples": 3}\\n', '["vmap", "add", "", false]\\n']
    """
    cases = ([*result[:3], not result.message] for result in results)
    return [json.dumps(line) + "\n" for line in (conditions, *cases)]


def counts(results: Iterable[Result]) -> dict[str, Count]:
    """Each row's cases, and its entries, of which one fails with its first case."""
    rows: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        rows[result.row][result.entry].append(not result.message)
    return {
        row: Count(
            sum(map(sum, entries.values())),
            sum(map(len, entries.values())),
            sum(map(all, entries.values())),
            len(entries),
        )
        for row, entries in rows.items()
    }


def missed(rows: dict[str, Count]) -> list[str]:
    """The rows under their targets."""
    return [
        row
        for row, count in rows.items()
        if count.cases - count.passed > count.cases * (100 - TARGETS[row]) / 100
    ]


def table(rows: dict[str, Count]) -> list[str]:
    """Lines of text, one a row.

    >>> table({"views": Count(199, 200, 24, 25)})[1].split()
    ['views', '199', '200', '99.5', '99', 'reached', '24', '25', '96.0']
    """
    lines = [f"{'':18}{'pass':>6}{'cases':>7}{'%':>7}{'target':>8}{'':10}{'entries':>14}{'%':>7}"]
    under = missed(rows)
    for row in sorted(rows, key=list(TARGETS).index):
        count, target = rows[row], TARGETS[row]
        verdict = "" if not target else "MISSED" if row in under else "reached"
        lines.append(
            f"{row:18}{count.passed:>6}{count.cases:>7}{100 * count.passed / count.cases:>7.1f}"
            f"{f'{target:g}' if target else '':>8}  {verdict:8}"
            f"{count.entries_passed:>7}{count.entries:>7}"
            f"{100 * count.entries_passed / count.entries:>7.1f}"
        )
    return lines
