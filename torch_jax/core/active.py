"""What ``torch_jax.jit`` and ``torch_jax.trace_ops`` have under way on this thread."""

from __future__ import annotations

import threading
from typing import Any


class _Active(threading.local):
    capture: Any = None
    traces: tuple = ()  # the blocks of torch_jax.trace_ops that are open


ACTIVE = _Active()

# Held while storages hold tracers; other threads that meet one wait for it to be over.
TRACING = threading.RLock()
