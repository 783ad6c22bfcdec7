"""Numbers of devices: each process has one device, which bears the number 0 on its tensors.

Where ``torchrun`` has started several processes of a host, programs call the device of each by its
number there, ``jax:1`` or ``cuda:1``. So all numbers below that of these processes mean the device
of the process; the number chosen last is kept for callers that ask.
"""

from __future__ import annotations

import os

_chosen = 0


def count() -> int:
    """Return the number of processes of this host that ``torchrun`` has started."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def check(index: int) -> int:
    """Return ``index``; raise ``RuntimeError`` where there is no such device."""
    if not 0 <= index < count():
        those = "is one device, jax:0" if count() == 1 else f"are jax:0 to jax:{count() - 1}"
        raise RuntimeError(f"invalid device ordinal: jax:{index}; there {those}")
    return index


def known(index: int) -> int:
    """Return a number as a program for CUDA gives it: 0 in place of one that no device has."""
    return index if index < count() else 0


def current() -> int:
    """Return the number that was chosen last."""
    return _chosen


def choose(index: int) -> None:
    """Keep a number; a negative one, as in PyTorch, changes nothing."""
    global _chosen
    if index >= 0:
        _chosen = check(index)
