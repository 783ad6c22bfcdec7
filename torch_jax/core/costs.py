"""Expensive steps, reported to a listener: compilations, copies, operators that run on the CPU.

Only a program run under ``python -m torch_jax run`` has a listener. The check for one is cheap
beside the steps themselves: each takes microseconds at least.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch_jax.core import compilations
from torch_jax.core.compilations import NOTHING, Counts


class Cost(NamedTuple):
    """One thing that was done: its kind, its name, and its costs.

    Attributes:
      kind: ``"compile"``, ``"to_host"``, ``"check"`` (a wait that the device asks for, to see that
        indices are within bounds), ``"to_device"`` or ``"fallback"``.
      what: the operator or the program, where one is meant.
      seconds: how long it took, or was waited for.
      bytes: how many were copied.
      programs: XLA's programs for it.
    """

    kind: str
    what: str
    seconds: float
    bytes: int = 0
    programs: Counts = NOTHING


class LISTENING:
    """The listener of this process."""

    listener: Callable[[Cost], None] | None = None


_here = threading.local()  # ``is_inside``: the step is part of a measured one


def note(kind: str, what: str, seconds: float, count: int = 0, programs: Counts = NOTHING) -> None:
    """Report a step; a step within :func:`measured` counts there.

    >>> LISTENING.listener = lambda cost: print(cost[:4])
    >>> note("to_host", "", 0.5, 8)
    ('to_host', '', 0.5, 8)
    >>> LISTENING.listener = None
    """
    listener = LISTENING.listener
    if listener is not None and not getattr(_here, "is_inside", False):
        listener(Cost(kind, what, seconds, count, programs))


def _compiled(name: str, programs: Counts) -> None:
    """Report a program that was compiled or loaded where nothing is measured."""
    note("compile", name, programs.seconds, programs=programs)


compilations.listeners.append(_compiled)


@contextlib.contextmanager
def measured(kind: str, what: str) -> Iterator[None]:
    """Measure a block that is expensive as a whole, and report its cost."""
    if LISTENING.listener is None or getattr(_here, "is_inside", False):
        yield
        return
    _here.is_inside, start, before = True, time.perf_counter(), compilations.here()
    try:
        yield
    finally:
        _here.is_inside = False
        programs = compilations.here().minus(before)
        note(kind, what, time.perf_counter() - start, programs=programs)
