"""A pytest plugin: selects tests, their order, and their process.

``--affected FILE`` leaves out slow tests that a change cannot break, by the file that
``python -m tests.support.affected --write FILE`` writes. Quick tests always run. A change that
reaches everything asks a third of the cases of slow tests that have cases; which third depends on
the commit that it begins at (:mod:`tests.support.seeds`). Conformance does so for each change.

``--shuffle NUMBER`` shuffles the files, and the tests of each.

``--dist loadgroup`` gives a process some dozens of tests of one file at a time, so that what a file
sets up or compiles is rarely made twice. Slow tests go first, so that no process waits at the end.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from _pytest.doctest import DoctestModule
from xdist.scheduler import LoadGroupScheduling

from tests.support import seeds
from tests.support.affected import Selection
from tests.support.imports import PACKAGE, ROOT, TESTS

TESTS_AT_A_TIME = 40  # of one file, for one process


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the module's docstring."""
    parser.addoption("--affected", type=Path, help="a file with the tests that a change selects")
    parser.addoption("--shuffle", type=int, help="a number; another one means another order")


def pytest_configure(config: pytest.Config) -> None:
    """Pass on to conformance what the change asks of it."""
    if config.option.affected:
        os.environ["CONFORMANCE_COMMIT"] = str(seeds.commit_number())
        os.environ["CONFORMANCE_MODULES"] = " ".join(_selection(config).lowerings)


def pytest_report_header(config: pytest.Config) -> str:
    """Say how this run's draws and order are repeated."""
    order = f", --shuffle {config.option.shuffle}" if config.option.shuffle is not None else ""
    return f"random tests are those of TESTS_COMMIT={seeds.commit_number()}{order}"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the examples in the docstrings of the package."""
    is_of_the_package = file_path.suffix == ".py" and PACKAGE in file_path.parents
    if is_of_the_package and file_path.name != "__main__.py":  # which an import would run
        return DoctestModule.from_parent(parent, path=file_path)
    return None


@pytest.fixture(autouse=True, scope="session")
def names_of_examples(doctest_namespace: dict[str, object]) -> None:
    """Let examples in docstrings say ``torch``, also where their module does not import it."""
    doctest_namespace["torch"] = torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not selected, shuffle, and put slow tests first."""
    if config.option.affected:
        selection = _selection(config)
        left_out = [item for item in items if not is_chosen(item, selection)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_chosen(item, selection)]
    if config.option.shuffle is not None:
        items[:] = shuffled(items, config.option.shuffle)
    items.sort(key=lambda item: not _is_slow(item))


def _selection(config: pytest.Config) -> Selection:
    return Selection(**json.loads(config.option.affected.read_text()))


def is_chosen(item: pytest.Item, selection: Selection) -> bool:
    """Return whether a test runs for a selection."""
    path = str(item.path.relative_to(ROOT))
    if selection.everything:
        return is_asked(item)
    if path in selection.modules:
        return True
    if os.environ["TORCH_JAX_TEST_XLA"] == "default":  # most of these tests have run before
        return path in selection.tests
    if path in selection.tests:
        family = getattr(item, "callspec", None) and item.callspec.params.get("family")
        return not (family and selection.families) or family in selection.families
    is_of_the_package = TESTS not in item.path.parents
    return not (_is_slow(item) or is_of_the_package)


def is_asked(item: pytest.Item) -> bool:
    """Return whether the present change asks for this case of a slow test."""
    if not hasattr(item, "callspec") or not item.get_closest_marker("slow"):
        return True
    if item.get_closest_marker("every_case"):
        return True
    return seeds.in_third(item.nodeid, seeds.commit_number())


def _is_slow(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("slow")) or "conformance" in item.path.parts


def shuffled(items: list[pytest.Item], number: int) -> list[pytest.Item]:
    """Return tests in another order, those of a file still one after the other."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    drawn = random.Random(number)
    order = sorted(files)
    drawn.shuffle(order)
    for path in order:
        drawn.shuffle(files[path])
    return [item for path in order for item in files[path]]


class ByFile(LoadGroupScheduling):
    """Gives a process a group of tests (``xdist_group``), or some tests of one file."""

    def __init__(self, *args, **kwargs) -> None:
        """Count no test yet."""
        super().__init__(*args, **kwargs)
        self._units: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        if group != nodeid:
            return group
        if nodeid not in self._units:
            file = nodeid.partition("::")[0]
            self._units[nodeid] = f"{file}#{self._counts[file] // TESTS_AT_A_TIME}"
            self._counts[file] += 1
        return self._units[nodeid]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log) -> ByFile | None:
    """Schedule by files where ``--dist loadgroup`` asks for groups."""
    return ByFile(config, log) if config.option.dist == "loadgroup" else None
