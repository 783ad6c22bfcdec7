"""glibc's allocator, asked to keep freed memory (setting ``keep_host_memory``).

XLA allocates the memory of a program's temporaries at each call on the CPU. glibc gives large
blocks back to the kernel when they are freed, and the kernel clears each page when it is touched
again: in a training step of a ResNet 28,000 pages, 15 to 19 % of its time. With one arena and high
thresholds the next call finds the pages of the one before. The process then keeps its largest size.
"""

from __future__ import annotations

import ctypes

from torch_jax import config

# Parameters of mallopt(3), and their values: an int each.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_PARAMETERS = ((_ARENA_MAX, 1), (_TRIM_THRESHOLD, 2**31 - 1), (_MMAP_THRESHOLD, 2**30))


def install() -> None:
    """Apply the setting, before XLA's threads are there, each of which would have an arena."""
    if not config.get("keep_host_memory"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # missing in macOS and musl
    if mallopt is not None:
        for name, value in _PARAMETERS:
            mallopt(name, value)
