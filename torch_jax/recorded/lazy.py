"""Lazy mode: ``with torch_jax.lazy():`` operators are recorded, and run together at ``sync()``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_jax.core.active import ACTIVE
from torch_jax.recorded.recorder import Recorder

# Where fused mode cuts a recording, in operators: see :class:`Recorder`.
_MOST, _LEAST = 256, 32


class _Own(threading.local):
    """The recorders of a thread."""

    def __init__(self) -> None:
        self.lazy, self.fused = Recorder(), Recorder(_MOST, _LEAST)


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
    with _recording(_own.lazy):
        yield


@contextmanager
def fused() -> Iterator[None]:
    """Run this thread's operators in groups, with no :func:`sync`.

    A group ends where a value is looked at, where a loop comes around, and after some hundred
    operators. It is compiled as one program when it has come several times; until then its
    operators run one by one, as in eager mode.

    >>> with fused():
    ...     total = torch.zeros((), device="jax")
    ...     for i in range(100):
    ...         total = (total + i).clamp(max=1000)
    >>> total.item()
    1000.0
    """
    with _recording(_own.fused):
        yield


@contextmanager
def _recording(recorder: Recorder) -> Iterator[None]:
    if ACTIVE.recorder is not None or ACTIVE.tracer is not None:
        yield
        return
    # Backward passes stay on this thread: one of autograd's would not record.
    with torch.autograd.set_multithreading_enabled(False):
        ACTIVE.recorder = recorder
        try:
            yield
        finally:
            ACTIVE.recorder = None
            recorder.flush()


def sync() -> None:
    """Run what this thread has recorded; the device goes on working when this returns.

    Where nothing is recorded, nothing happens.
    """
    _own.lazy.flush()
    _own.fused.flush()
