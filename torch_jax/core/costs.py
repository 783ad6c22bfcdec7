"""Expensive steps, reported to a listener: compilations, copies, operators that run on the CPU.

Only a program run under ``python -m torch_jax run`` has a listener. The check for one is cheap
beside the steps themselves: each takes microseconds at least. Bytes of copies are always counted.
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
    """One thing that was done: its kind, its name, and its costs."""

    # "compile", "to_host", "check" (a wait that the device asks for, to see that indices and the
    # like are valid), "to_device" or "fallback"
    kind: str
    what: str  # the operator or the program, where one is meant
    seconds: float  # how long it took, or was waited for
    bytes: int = 0  # that were copied
    programs: Counts = NOTHING  # XLA's for it


listener: Callable[[Cost], None] | None = None  # of this process
_here = threading.local()  # ``is_inside``: the step is part of a measured one


def note(kind: str, what: str, seconds: float, count: int = 0, programs: Counts = NOTHING) -> None:
    """Report a step; a step within :func:`measured` counts there.

    >>> from torch_jax.core import costs
    >>> costs.listener = lambda cost: print(cost[:4])
    >>> note("to_host", "", 0.5, 8)
    ('to_host', '', 0.5, 8)
    >>> costs.listener = None
    """
    heard = listener
    if heard is not None and not getattr(_here, "is_inside", False):
        heard(Cost(kind, what, seconds, count, programs))


# of programs that are compiled or loaded where nothing is measured
compilations.listeners.append(
    lambda name, programs: note("compile", name, programs.seconds, programs=programs)
)


@contextlib.contextmanager
def measured(kind: str, what: str) -> Iterator[None]:
    """Measure a block that is expensive as a whole, and report its cost."""
    if listener is None or getattr(_here, "is_inside", False):
        yield
        return
    _here.is_inside, start, before = True, time.perf_counter(), compilations.here()
    try:
        yield
    finally:
        _here.is_inside = False
        note(kind, what, time.perf_counter() - start, programs=compilations.here().minus(before))


class Traffic:
    """Bytes copied between host and device, either way, and seconds of waiting, on all threads.

    >>> traffic = Traffic()
    >>> traffic.to_device(4)
    >>> traffic.to_host(8, 0.5)
    >>> traffic.sums()
    (4, 8, 0.5)
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a handler of signals may copy, too
        self.clear()

    def clear(self) -> None:
        self._sums: tuple[int, int, float] = (0, 0, 0.0)

    def to_device(self, count: int) -> None:
        """Count bytes that were copied to the device."""
        self._add(count, 0, 0.0)
        note("to_device", "", 0.0, count)

    def to_host(self, count: int, seconds: float) -> None:
        """Count bytes that the host has read, and the seconds that it waited for them."""
        self._add(0, count, seconds)
        note("to_host", "", seconds, count)

    def _add(self, to_device: int, to_host: int, seconds: float) -> None:
        with self._lock:
            sums = self._sums
            self._sums = sums[0] + to_device, sums[1] + to_host, sums[2] + seconds

    def sums(self) -> tuple[int, int, float]:
        """Return bytes to the device, bytes to the host, and seconds of waiting."""
        return self._sums


TRAFFIC = Traffic()
