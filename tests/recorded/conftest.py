"""Each test begins as the first one: tests of recordings count programs and paths."""

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_remembered(nothing_is_remembered: None) -> None:
    """Ask for the fixture of all tests."""
