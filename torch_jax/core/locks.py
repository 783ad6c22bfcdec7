"""Locks that more than one floor knows of."""

from __future__ import annotations

import threading
from typing import Any

from torch_jax.core import forks

# Held while the program of a pure function is called. Read it as ``locks.RUNNING``: in a
# forked child another object stands in its place.
RUNNING: Any = threading.RLock()


def _lock_out() -> None:
    """In a forked child: a compiled call raises before it has done anything."""
    global RUNNING
    RUNNING = forks.Refusal()


forks.listeners.append(_lock_out)
