"""The C library's heap: it keeps what is freed for the next call, and gives back what none takes.

XLA allocates the memory of a program's temporaries at each call on the CPU. glibc gives large
blocks back to the kernel when they are freed, and the kernel clears each page when it is touched
again: in a training step of a ResNet 28,000 pages, 15 to 19 % of its time. With one arena (each
thread would have its own) and high thresholds the next call finds the pages of the one before.

A freed block is not always found: glibc asks for some bytes beside it, for its alignment, and may
have given these to others. Then the heap grows by a whole block. So where it has grown by much, the
pages of free blocks go back to the kernel; those of the running program are in use, and stay.
"""

from __future__ import annotations

import ctypes
from typing import Any

from torch_jax import config
from torch_jax.budgets import SHARE_OF_HEAP_BEFORE_A_TRIM

_end: Any = None  # a function of the heap's end; None where the heap is as the C library has it
_begin = _trimmed = 0  # the heap's end when the device was first used, and at the last trim


def keep() -> None:
    """Let glibc keep freed memory (setting ``keep_host_memory``), before XLA's threads are there.

    macOS and musl know no such parameters.
    """
    global _end, _begin, _trimmed
    library = ctypes.CDLL(None)
    if not config.get("keep_host_memory") or not hasattr(library, "mallopt"):
        return
    # M_ARENA_MAX, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of mallopt(3), with their values: ints
    for parameter, value in ((-8, 1), (-1, 2**31 - 1), (-3, 2**30)):
        library.mallopt(parameter, value)
    library.sbrk.restype = ctypes.c_size_t
    _end = library.sbrk
    _begin = _trimmed = _end(0)


def trim() -> None:
    """Give the pages of free blocks back to the kernel, where the heap has grown by much."""
    global _trimmed
    if _end is None:
        return
    end = _end(0)
    if end - _trimmed > SHARE_OF_HEAP_BEFORE_A_TRIM * (end - _begin):
        _trimmed = end
        # all of the heap's end is kept, for the next block
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(2**40))
