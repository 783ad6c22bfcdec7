"""Lazy mode: ``with torch_jax.lazy():`` operators are recorded, and run together at ``sync()``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_jax.core.active import ACTIVE
from torch_jax.recorded.recorder import Recorder


class _Own(threading.local):
    """The recorder of a thread."""

    def __init__(self) -> None:
        self.recorder = Recorder()


_own = _Own()


@contextmanager
def lazy() -> Iterator[None]:
    """Record this thread's operators, and run what is written down at the end of the block.

    Python runs as ever, so nothing can be stale. Operators are run together, as one program that
    XLA compiles once for each graph: at :func:`sync`, at the end of the block, and whenever a value
    is looked at. Within a block of the same kind nothing changes.

    >>> x = torch.ones(3, device="jax")
    >>> with lazy():
    ...     y = (x + 1).relu() * 2
    ...     sync()
    >>> y.tolist()
    [4.0, 4.0, 4.0]
    """
    if ACTIVE.recorder is not None or ACTIVE.tracer is not None:
        yield
        return
    # Backward passes stay on this thread: one of autograd's would not record.
    with torch.autograd.set_multithreading_enabled(False):
        ACTIVE.recorder = recorder = _own.recorder
        try:
            yield
        finally:
            ACTIVE.recorder = None
            recorder.flush()


def sync() -> None:
    """Run what this thread has recorded; the device goes on working when this returns.

    Where nothing is recorded, nothing happens.
    """
    _own.recorder.flush()
