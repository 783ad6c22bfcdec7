"""The first use of the device: whether it has happened, and the work that it starts.

``import torch`` only names the device, and leaves here the work for its first use
(:func:`on_wake`). Every first use – a factory, the boxed fallback, an answer of ``torch.jax`` –
calls :func:`wake`, which does that work. So lower floors can wake the device without an import of
the top floor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch_jax.core import forks

DOORS = ("empty.memory_format", "empty_strided")  # the factories that wake the device
LOCK = threading.RLock()  # held while the device is named, and while it wakes
_awake = False
_start: Callable[[], None] | None = None


def on_wake(start: Callable[[], None]) -> None:
    """Have ``start`` called, once, when the device is first used."""
    global _start
    _start = start


def is_awake() -> bool:
    """Return whether the device has been used in this process."""
    return _awake


def wake() -> None:
    """Import JAX and the table and register the kernels, at the first use of the device."""
    global _awake
    if _awake:
        return
    forks.refuse()
    with LOCK:
        if _awake:
            return
        forks.note_use()
        if _start is None:
            raise RuntimeError("device 'jax' is not registered: import torch_jax")
        _start()
        _awake = True


def _fall_asleep() -> None:
    """Have a forked child call :func:`wake`, which raises, at every use of the device."""
    global _awake
    _awake = False


forks.listeners.append(_fall_asleep)
