"""State of this thread: its trace, its recorder, and blocks of ``torch_jax.trace_ops``.

An executor that makes a program of operators puts its tracer into :data:`ACTIVE` while it traces.
All code below it – kernels, generators, control flow – asks the tracer where an operator run by
itself would ask the device or the host. Executors differ in their knowledge:

- Eager has no tracer: each operator runs at once, and has every value.
- The tracer of a graph of fx, of ``torch.compile`` or of an export, a ``GraphRun``, asks nothing of
  Python: all its draws and checks must be inputs or outputs of its program.
- A recording is no tracer: Python gets every value that it reads, since the operators are run then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class _Active(threading.local):
    tracer: Any = None  # None in eager mode
    # The recorder writes operators down in place of running them; None where they run at once. A
    # tracer goes before it.
    recorder: Any = None
    # The observer watches a recorded call of which later calls skip the Python: ``jit(pure=True)``.
    observer: Any = None
    words: Any = None  # of the draw of a recorded operator that runs: it has been drawn before
    call_trees: tuple = ()  # the blocks of torch_jax.trace_ops that are open


ACTIVE = _Active()


class _OnFirstUse:
    """A value that ``begin`` makes at a thread's first use; attributes set already cost nothing."""

    def __init__(self, begin: Callable[[], Any]):
        self._begin = begin

    def __get__(self, active: Any, kind: type | None = None) -> Any:
        return self._begin()


def begin_threads_by(begin: Callable[[], Any]) -> None:
    """Have ``begin`` store and return the recorder of each thread at its first use."""
    _Active.recorder = _OnFirstUse(begin)


class unrecorded:  # one of contextlib takes twice as long
    """Run the operators of a block at once, also while this thread records."""

    def __enter__(self) -> None:
        self._recorder, ACTIVE.recorder = ACTIVE.recorder, None

    def __exit__(self, *_error: object) -> None:
        ACTIVE.recorder = self._recorder
