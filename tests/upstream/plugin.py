"""A pytest plugin for files of PyTorch's own tests: only those that take a device, on one device.

Each test has a time limit, what :mod:`tests.upstream.exceptions` names may fail, and a line of JSON
with the outcomes, the compiled programs and the seconds is added to ``--upstream-report``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.testing._internal import common_device_type, common_distributed

from tests.support.ledger import PROPERTY, Counts
from tests.upstream import pool
from tests.upstream.exceptions import MORE_RANKS, left_out, reason
from tests.upstream.files import anywhere

# Tests that run on some devices only run on this one, too.
common_device_type.PrivateUse1TestBase.bypass_device_restrictions = True

# How ``assertRaisesRegex`` fails where the type of the exception is right.
OTHER_WORDS = re.compile(r'AssertionError: ".*" does not match "', re.DOTALL)

_outcomes: Counter[str] = Counter()
_spent = Counts()
_seconds = 0.0
_names: dict[str, list[str]] = {"failing": [], "passing": []}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the runner."""
    group = parser.getgroup("upstream")
    group.addoption("--upstream-file", default="", help="the file's path in the folder test")
    group.addoption("--upstream-device", default="jax", help="jax, or cpu to compare with")
    group.addoption("--upstream-only", type=Path, help="JSON of names of tests, on any device")
    group.addoption("--upstream-report", type=Path, help="file for a line of JSON")
    group.addoption("--upstream-ranks", action="store_true", help="many processes: all tests")
    group.addoption("--upstream-limit", type=int, default=120, help="seconds for each test")


def pytest_configure(config: pytest.Config) -> None:
    """Tests of many processes share processes."""
    if config.option.upstream_ranks:
        common_distributed.MultiProcessTestCase._start_processes = pool.start_processes


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that take the device, and that nothing speaks against."""
    option = config.option
    only = json.loads(option.upstream_only.read_text()) if option.upstream_only else None
    items[:] = [item for item in items if _wanted(item, option, only)]
    for item in items:
        why = reason(option.upstream_file, item.name)
        if why:
            item.add_marker(pytest.mark.xfail(reason=why, strict=False))


def _wanted(item: Any, option: Any, only: list[str] | None) -> bool:
    device = option.upstream_device
    case = getattr(item, "cls", None)
    if case is None or not (option.upstream_ranks or _takes(case, device)):
        return False
    if only is not None:
        return anywhere(item.name, device) in only
    why = left_out(_source(item)) or (_too_many_ranks(case) if option.upstream_ranks else "")
    _outcomes.update([why] if why else [])
    return not why


def _takes(case: Any, device: str) -> bool:
    own = ("cpu",) if device == "cpu" else (device, "privateuse1")
    return getattr(case, "device_type", None) in own


def _too_many_ranks(case: Any) -> str:
    """Whether a test wants more processes, or threads, than are started."""
    ranks = importlib.import_module("tests.upstream.ranks")
    for base, most in ranks.MOST.items():
        if issubclass(case, base) and int(object.__new__(case).world_size) > most:
            return MORE_RANKS
    return ""


def _source(item: Any) -> str:
    """The source of a test, behind the decorators that instantiate it for a device."""
    try:
        return inspect.getsource(inspect.unwrap(item.function))
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


def pytest_runtest_teardown(item: Any) -> None:
    """A failure in processes that a class of tests shares is one test's."""
    if item.cls is not None:
        pool.start_again(item.cls)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count an outcome."""
    global _spent, _seconds
    _seconds += report.duration
    for name, value in report.user_properties:
        if name == PROPERTY:
            _spent = _spent.plus(value)
    if report.when == "call" or report.outcome != "passed":
        _count(report)


def _count(report: pytest.TestReport) -> None:
    excepted = hasattr(report, "wasxfail")
    if OTHER_WORDS.search(report.longreprtext) and report.outcome == "failed":
        _outcomes["other words"] += 1
        return
    _outcomes["excepted" if excepted else report.outcome] += 1
    name = report.nodeid.rpartition("::")[2]
    if excepted and report.outcome == "passed":
        _names["passing"].append(name)
    if not excepted and report.outcome == "failed":
        _names["failing"].append(name)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the line, and end the ranks."""
    pool.end()
    option = session.config.option
    if option.upstream_report is None:
        return
    counts = {"compiled": _spent.compiled, "seconds": round(_seconds)}
    line = {"file": option.upstream_file, **_outcomes, **counts, **_names}
    with option.upstream_report.open("a") as file:
        file.write(json.dumps(line) + "\n")
