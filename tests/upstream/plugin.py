"""A pytest plugin for files of PyTorch's own tests: only those that take a device, on jax.

Each test has a time limit, what :mod:`tests.upstream.exceptions` names may fail, and a line of JSON
with the outcomes, the compiled programs and the seconds is added to ``--upstream-report``.
"""

from __future__ import annotations

import inspect
import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal import common_device_type

from tests.support.ledger import PROPERTY, Counts
from tests.upstream.exceptions import OTHER_DEVICES, reason

# Tests that run on some devices only run on this one, too.
common_device_type.PrivateUse1TestBase.bypass_device_restrictions = True

_outcomes: Counter[str] = Counter()
_spent = Counts()
_seconds = 0.0
_passing: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the runner."""
    group = parser.getgroup("upstream")
    group.addoption("--upstream-file", default="", help="the file's path in the folder test")
    group.addoption("--upstream-report", type=Path, help="file for a line of JSON")
    group.addoption("--upstream-limit", type=int, default=60, help="seconds for each test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that take a device, and are not about another one."""
    device = torch._C._get_privateuse1_backend_name()
    kept = []
    for item in items:
        kind = getattr(getattr(item, "cls", None), "device_type", None)
        if kind not in (device, "privateuse1"):
            continue
        if OTHER_DEVICES.search(_source(item)):
            _outcomes["about another device"] += 1
            continue
        why = reason(config.option.upstream_file, item.name)
        if why:
            item.add_marker(pytest.mark.xfail(reason=why, strict=False))
        kept.append(item)
    items[:] = kept


def _source(item: Any) -> str:
    """The source of a test, behind the decorators that instantiate it for a device."""
    function = getattr(item, "function", None)
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that takes too long."""
    limit = item.config.option.upstream_limit

    def stop(signum: int, frame: Any) -> None:
        pytest.fail(f"took more than {limit} s", pytrace=False)

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count an outcome."""
    global _spent, _seconds
    _seconds += report.duration
    for name, value in report.user_properties:
        if name == PROPERTY:
            _spent = _spent.plus(value)
    if report.when == "call" or report.outcome != "passed":
        _outcomes[_outcome(report)] += 1


def _outcome(report: pytest.TestReport) -> str:
    if not hasattr(report, "wasxfail"):
        return report.outcome
    if report.outcome == "passed":
        _passing.append(report.nodeid)
    return "excepted"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the line."""
    option = session.config.option
    if option.upstream_report is None:
        return
    line = {
        "file": option.upstream_file,
        **_outcomes,
        "compiled": _spent.compiled,
        "seconds": round(_seconds),
        "passing": _passing,
    }
    with option.upstream_report.open("a") as file:
        file.write(json.dumps(line) + "\n")
