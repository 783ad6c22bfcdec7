"""Collects the results of all workers, prints the table, and fails a run that misses a target."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import os
from pathlib import Path

import jax.numpy as jnp
import pytest
import torch
from jax import lax

from tests.conformance import report, samples
from tests.support.executables import few_executables_at_a_time

__all__ = ["few_executables_at_a_time"]

_results: list[report.Result] = []


@pytest.fixture(autouse=True)
def _products_say_how_exact_they_are(monkeypatch) -> None:
    """On accelerators XLA rounds products of float32 that say nothing to TF32 or bfloat16."""
    for primitive in (lax.dot_general_p, lax.conv_general_dilated_p):
        monkeypatch.setattr(primitive, "bind", functools.partial(_bind, primitive.bind))


def _bind(bind, *operands, **options):
    is_exact = options["precision"] is not None
    assert is_exact or not {"float32", "complex64"} & {str(jnp.dtype(x)) for x in operands}
    return bind(*operands, **options)


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
    chosen = session.config.option.keyword or getattr(session.config.option, "lf", False)
    # in a part, as the cases of a week, known gaps may be more than a target lets fail
    whole = not (chosen or report.WEEK or report.COMMIT)
    if whole and report.missed(report.counts(_results)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _conditions() -> dict[str, object]:
    """What the run was of."""
    torch.ones(1, device="jax")  # the first use has JAX choose its platform
    return {
        "torch": torch.__version__,
        "jax": importlib.metadata.version("jax"),
        "device": torch.jax.get_device_name(),
        "date": datetime.date.today().isoformat(),
        "samples": samples.LIMIT,
        "week": report.WEEK,
        "entries": len(samples.entries()),
    }


def pytest_terminal_summary(terminalreporter) -> None:
    if not _results:
        return
    path = os.environ.get("CONFORMANCE_RESULTS")
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("".join(report.lines(_results, _conditions())))
    week = f", week {report.WEEK}" if report.WEEK else ""
    terminalreporter.section(f"conformance to PyTorch's operator database{week}")
    for line in report.table(report.counts(_results)):
        terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _as_on_accelerators(eager_by_xla: None) -> None:
    """Have XLA run eager operators: the table is what accelerators run."""
