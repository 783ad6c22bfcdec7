"""Whether the device has been used, and what the first use sets going.

``import torch`` only names the device. Every first use of it – a factory, the boxed fallback, an
answer of ``torch.jax`` – comes to :func:`wake`, which hands over to :mod:`torch_jax.startup.start`
by name: the one call in the house that goes up.
"""

from __future__ import annotations

import importlib
import threading

from torch_jax.core import forks

DOORS = ("empty.memory_format", "empty_strided")  # the factories that wake the device
LOCK = threading.RLock()  # held while the device is named, and while it wakes
_awake = False


def is_awake() -> bool:
    """Whether the device has been used in this process."""
    return _awake


def wake() -> None:
    """Import JAX and the table and register the kernels; the first use of the device calls it."""
    global _awake
    if _awake:
        return
    forks.refuse()
    with LOCK:
        if _awake:
            return
        forks.note_use()
        importlib.import_module("torch_jax.startup.start").start()
        _awake = True


def _fall_asleep() -> None:
    """In a forked child: every way to the device leads to :func:`wake`, which raises."""
    global _awake
    _awake = False


forks.listeners.append(_fall_asleep)
