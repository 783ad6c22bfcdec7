"""The ledger counts what JAX compiles and loads, and adds up the parts of each test."""

from __future__ import annotations

import doctest

import jax
import pytest

from tests.support import ledger
from tests.support.ledger import Line
from torch_jax.core import compilations
from torch_jax.core.compilations import NOTHING, Counts


@pytest.fixture
def fresh_counts(monkeypatch):
    """Begin at nothing; what was counted before is put back."""
    monkeypatch.setattr(ledger, "_before", compilations.everything())


def test_what_jax_compiles_is_counted_once(fresh_counts):
    double = jax.jit(lambda x: x + x)
    double(1.5)
    found = ledger.take()
    assert found.compiled + found.loaded == 1 and found.seconds > 0
    double(2.5)
    assert ledger.take() == NOTHING


def report(name: str, seconds: float, *counts: float) -> pytest.TestReport:
    """The report of a part of a test."""
    properties = [("conformance", []), (ledger.PROPERTY, list(counts))]
    location = (name, 0, name)
    return pytest.TestReport(
        name, location, {}, "passed", None, "call", user_properties=properties, duration=seconds
    )


def test_the_parts_of_a_test_are_added_up():
    lines: dict[str, Line] = {}
    for part in (
        report("one", 0.5, 2, 0.25, 1, 0.125, 3),
        report("one", 1.5, 1, 0.5, 0, 0.0, 0),
        report("other", 1.0, 0, 0.0, 0, 0.0, 0),
    ):
        ledger.add(lines, part)
    assert lines["one"] == Line("one", 2.0, Counts(3, 0.75, 1, 0.125, 3))
    assert lines["other"] == Line("other", 1.0)


def test_the_table_is_as_its_example_shows():
    found = doctest.testmod(ledger)
    assert found.attempted and not found.failed
