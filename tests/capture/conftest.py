"""Functions under jit are traced at their second call; what cannot be skipped is an error.

A test of Python that runs at each call says so by its own mark, ``fallback="record"``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_jax.core import compilations

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; a mark of a test's own comes first."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.traced_at_once)


@pytest.fixture
def programs_of_traces(monkeypatch) -> Iterator[list[str]]:
    """Collect the programs of whole traces; operators that run one by one have their own."""
    found: list[str] = []

    def hear(name: str, _counts: compilations.Counts) -> None:
        if name == "torch_jax_program":
            found.append(name)

    monkeypatch.setattr(compilations, "listeners", [*compilations.listeners, hear])
    yield found
