"""The number of executables of a process while it runs tests of thousands of shapes."""

from __future__ import annotations

import jax
import pytest
from jax.extend import backend

from torch_jax.dispatch import ladder

# In one process: each takes 1.5 MB, and three of the 65,530 memory maps that Linux gives a process.
MOST_EXECUTABLES = 3000


@pytest.fixture(autouse=True)
def few_executables_at_a_time():
    """Drop what was compiled: tens of thousands of executables would not fit the memory."""
    yield
    if len(backend.get_backend().live_executables()) > MOST_EXECUTABLES:
        ladder.forget_compiled()
        jax.clear_caches()
