"""Thousands of shapes, each compiled once: compiled programs are dropped now and then."""

import pytest

from tests.support.executables import few_executables_at_a_time

__all__ = ["few_executables_at_a_time"]


@pytest.fixture(autouse=True)
def _as_on_accelerators(eager_by_xla: None) -> None:
    """Have XLA run eager operators: the table is what accelerators run."""
