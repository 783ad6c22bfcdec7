"""Lazy mode: ``with torch_jax.lazy():`` operators are recorded, and run together at ``sync()``.

With the setting ``mode`` a thread records from its first use of the device on.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.budgets import OPERATORS_BEFORE_A_FUSED_CUT, OPERATORS_OF_A_FUSED_GROUP
from torch_jax.core import active, waking
from torch_jax.core.active import ACTIVE
from torch_jax.device import streams
from torch_jax.recorded import path
from torch_jax.recorded.program import SILENT, Listener
from torch_jax.recorded.recorder import Recorder


class _Own(threading.local):
    """The recorders of a thread."""

    def __init__(self) -> None:
        # of blocks of ``lazy`` and ``fused``, and of these modes
        self.by_mode: dict[str, Any] = {
            "eager": None,
            "lazy": Recorder(config.get("lazy_operators")),
            "fused": Recorder(OPERATORS_OF_A_FUSED_GROUP, OPERATORS_BEFORE_A_FUSED_CUT),
        }
        self.outside: Recorder | None = None  # of blocks; None in eager mode


_own = _Own()


def lazy() -> AbstractContextManager[None]:
    """Record this thread's operators, and run what is written down at the end of the block.

    Python runs as usual, so nothing can be stale. Operators are run together, as one program that
    XLA compiles once for each graph: at :func:`sync`, at the end of the block, and whenever a value
    is looked at. Within a block of the same kind, and in lazy mode, nothing changes.

    >>> x = torch.ones(3, device="jax")
    >>> with lazy():
    ...     y = (x + 1).relu() * 2
    ...     sync()
    >>> y.tolist()
    [4.0, 4.0, 4.0]
    """
    return _recording("lazy")


def fused() -> AbstractContextManager[None]:
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
    return _recording("fused")


@contextmanager
def _recording(mode: str, listener: Listener = SILENT) -> Iterator[None]:
    waking.wake()  # which finds out what the mode of this thread is
    if is_recording() or ACTIVE.tracer is not None:
        yield
        return
    if ACTIVE.recorder is not None:
        ACTIVE.recorder.flush()
    recorder = _own.by_mode[mode]
    recorder.listener = listener
    try:
        ACTIVE.recorder = recorder
        yield
    finally:
        ACTIVE.recorder = _own.outside  # which may have become another, within the block
        try:
            recorder.flush()
        finally:
            recorder.listener = SILENT


# Records as a block of :func:`lazy`, unless within one; the listener hears of each graph.
observed = functools.partial(_recording, "lazy")


def is_recording() -> bool:
    """Return whether operators go to a recording that blocks within it belong to."""
    recorder = ACTIVE.recorder
    return recorder is not None and not recorder.yields


@contextmanager
def outside(recorder: Recorder) -> Iterator[None]:
    """Record what this thread calls outside of other blocks."""
    before, _own.outside = _own.outside, recorder
    ACTIVE.recorder = recorder
    try:
        yield
        recorder.flush()
    finally:
        _own.outside = before
        ACTIVE.recorder = before


def sync(wait: bool = False) -> None:
    """Run what this thread has recorded; the device goes on working when this returns.

    Where nothing is recorded, nothing happens. ``torch_jax.mark_step`` is another name for it.

    Args:
      wait: return when all work on the device is done; errors of it surface here.

    >>> sync(wait=True)
    """
    for recorder in (*_own.by_mode.values(), _own.outside):
        if recorder is not None:
            recorder.flush()
    if wait:
        streams.synchronize()


mark_step = sync


def install() -> None:
    """Follow the settings of recording; called once, at the first use of the device."""
    active.begin_threads_by(_begin)
    config.setters["mode"] = follow
    config.setters["lazy_operators"] = lambda most: setattr(_own.by_mode["lazy"], "most", most)
    config.listeners.append(path.forget)  # paths of other settings


def _begin() -> Recorder | None:
    """Return the recorder of a thread at its first use of the device; autograd's never record."""
    if pytorch.current_graph_task() != -1:
        return None
    follow(config.get("mode"))
    return ACTIVE.recorder


def follow(mode: str) -> None:
    """Run operators of this thread as a mode says."""
    before, _own.outside = _own.outside, _own.by_mode[mode]
    if ACTIVE.__dict__.get("recorder") is before:  # else this is a block's: it goes on
        ACTIVE.recorder = _own.outside
    if before is not None:
        before.flush()
