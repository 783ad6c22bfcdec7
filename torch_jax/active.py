"""What is being traced on this thread by :func:`torch_jax.jit`, if anything."""

from __future__ import annotations

import threading
from typing import Any


class _Active(threading.local):
    capture: Any = None


ACTIVE = _Active()
