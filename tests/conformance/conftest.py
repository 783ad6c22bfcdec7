"""Collects the results of all workers, prints the table, and fails a run that misses a target."""

from __future__ import annotations

import json
import os

import pytest

from tests.conformance import report
from tests.support.executables import few_executables_at_a_time

__all__ = ["few_executables_at_a_time"]

_results: list[report.Result] = []


@pytest.fixture
def record(record_property):
    """Add results to the table."""
    return lambda results: record_property("conformance", [list(r) for r in results])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _collect(report.user_properties)


def _collect(properties) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # the process that gathers them all sees them too
        return
    rows = [row for name, rows in properties for row in rows if name == "conformance"]
    _results.extend(report.Result(*row) for row in rows)
    path = os.environ.get("CONFORMANCE_REPORT")  # failures, a line of JSON each, as they come
    if path:
        with open(path, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows if row[-1])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    whole = not (session.config.option.keyword or session.config.option.lf)
    if whole and report.missed(report.counts(_results)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter) -> None:
    if not _results:
        return
    week = f", week {report.WEEK}" if report.WEEK else ""
    terminalreporter.section(f"conformance to PyTorch's operator database{week}")
    for line in report.table(report.counts(_results)):
        terminalreporter.write_line(line)
