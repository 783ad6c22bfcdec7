"""The work that the first results of a process do without, by counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.processes import script

pytestmark = pytest.mark.xdist_group("first_use")


@pytest.fixture(scope="module")
def first() -> dict[str, Any]:
    """What one process saw that did little on the device."""
    # as users start it: the flags of tests leave XLA no faster tier, of which NumPy is the first
    return json.loads(script("first_results", new=True, XLA_FLAGS=None))


def test_the_first_result_compiles_nothing_and_lowers_nothing(first):
    assert first["result"] == [2.0, 2.0, 2.0]
    assert first["lowered"] == []


def test_the_first_results_import_only_what_they_need(first):
    assert first["imported"] == []


def test_kernels_are_made_when_they_are_called(first):
    assert first["kernels"] < 20
