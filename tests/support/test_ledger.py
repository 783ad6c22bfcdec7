"""The ledger counts what JAX compiles and loads, and adds up the parts of each test."""

from __future__ import annotations

import doctest

import jax
import pytest

from tests.support import ledger
from tests.support.ledger import Counts, Line


@pytest.fixture
def fresh_counts():
    """Begin at nothing; what was counted before is put back."""
    ledger.listen()
    before = ledger.take()
    yield
    ledger._since = before.plus(ledger.take())


def test_what_jax_compiles_is_counted_once(fresh_counts):
    double = jax.jit(lambda x: x + x)
    double(1.5)
    found = ledger.take()
    assert found.compiled + found.loaded == 1
    assert found.compile_seconds + found.load_seconds > 0
    double(2.5)
    assert ledger.take() == Counts()


def test_what_is_loaded_is_not_compiled(fresh_counts):
    ledger.note(ledger._LOADED, 0.25)
    ledger.note(ledger._PROGRAM, 1.0)
    ledger.note(ledger._PROGRAM, 2.0)
    ledger.note("/jax/something_else", 9.0)
    assert ledger.take() == Counts(1, 2.75, 1, 0.25)


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
        report("one", 0.5, 2, 0.25, 1, 0.125),
        report("one", 1.5, 1, 0.5, 0, 0.0),
        report("other", 1.0, 0, 0.0, 0, 0.0),
    ):
        ledger.add(lines, part)
    assert lines["one"] == Line("one", 2.0, Counts(3, 0.75, 1, 0.125))
    assert lines["other"] == Line("other", 1.0)


def test_the_table_is_as_its_example_shows():
    found = doctest.testmod(ledger)
    assert found.attempted and not found.failed
