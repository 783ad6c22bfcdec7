"""Locks that more than one floor knows of."""

from __future__ import annotations

import threading
from typing import Any

from torch_jax.core import forks

# Held while the program of a pure function is called. Read it as ``locks.RUNNING``: in a
# forked child another object replaces it.
RUNNING: Any = threading.RLock()


def _lock_out() -> None:
    """Replace the lock in a forked child: a compiled call then raises at once."""
    global RUNNING
    RUNNING = forks.Refusal()


forks.listeners.append(_lock_out)
