"""Eager operators are lowerings of the table here, as on accelerators."""

import pytest


@pytest.fixture(autouse=True)
def _as_on_accelerators(eager_by_xla: None) -> None:
    """Have XLA run eager operators."""
