"""A pytest plugin: the time of every test, and the part of XLA's compiler in it.

The processes of xdist send their counts with the reports of the tests (``user_properties``); the
process that gathers the reports prints the summary. What other processes compile that a test starts
is in the seconds of the test, and not in its counts.

``--ledger FILE`` writes a line of JSON for each test, ``--ledger-top N`` prints N tests.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from torch_jax.core import compilations
from torch_jax.core.compilations import NOTHING, Counts

PROPERTY = "ledger"


class Line(NamedTuple):
    """A test with all its seconds, set-up and clean-up included, and its counts."""

    name: str
    seconds: float = 0.0
    counts: Counts = NOTHING


# --- in the process that runs the tests -----------------------------------------------------------

_before = NOTHING  # at the last report


def take() -> Counts:
    """Return what was counted since the last time."""
    global _before
    before, _before = _before, compilations.everything()
    return _before.minus(before)


def programs() -> int:
    """Return how many programs JAX has compiled or loaded so far, in this process."""
    return compilations.everything().made


def pytest_runtest_setup() -> None:
    """Begin to count, with the first test."""
    compilations.listen()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Put the counts into the report of each part of a test."""
    report = yield
    report.user_properties.append((PROPERTY, list(take())))
    return report


# --- in the process that gathers the reports ------------------------------------------------------

_lines: dict[str, Line] = {}


def add(lines: dict[str, Line], report: pytest.TestReport) -> None:
    """Add a report to the line of its test."""
    _, seconds, counts = lines.get(report.nodeid, Line(report.nodeid))
    for name, value in report.user_properties:
        if name == PROPERTY:
            counts = counts.plus(value)
    lines[report.nodeid] = Line(report.nodeid, seconds + report.duration, counts)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the module's docstring."""
    group = parser.getgroup("ledger")
    group.addoption("--ledger", type=Path, help="file for a line of JSON for each test")
    group.addoption("--ledger-top", type=int, default=20, help="how many tests are printed")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Gather a report."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        add(_lines, report)


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Print the summary and the dearest tests."""
    if not _lines:
        return
    if config.option.ledger:
        rows = [json.dumps([line.name, line.seconds, *line.counts]) for line in _lines.values()]
        config.option.ledger.write_text("\n".join([*rows, ""]))
    terminalreporter.section("what the tests took")
    for text in table(_lines.values(), config.option.ledger_top):
        terminalreporter.write_line(text)


def table(lines: Iterable[Line], most: int) -> list[str]:
    """A summary, and the tests that took longest.

    >>> print(*table([Line("a", 2.0, Counts(1, 1.25)), Line("b", 3.0)], 1), sep="\\n")
    compiled 1 programs, 1 s of 5 s of tests; loaded 0 from disk, 0 s
     seconds compiled  seconds  loaded  test
         3.0        0      0.0       0  b
    """
    lines = list(lines)
    total = functools.reduce(Counts.plus, (line.counts for line in lines), NOTHING)
    texts = [
        f"compiled {total.compiled:,} programs, {total.compile_seconds:.0f} s"
        f" of {sum(line.seconds for line in lines):.0f} s of tests;"
        f" loaded {total.loaded:,} from disk, {total.load_seconds:.0f} s"
    ]
    if most:
        texts.append(" seconds compiled  seconds  loaded  test")
    for name, seconds, counts in sorted(lines, key=lambda line: -line.seconds)[:most]:
        texts.append(
            f"{seconds:>8.1f} {counts.compiled:>8} {counts.compile_seconds:>8.1f}"
            f" {counts.loaded:>7}  {name}"
        )
    return texts
