"""A line at the terminal: that XLA compiles, and since when (setting ``progress``).

Operators are compiled one after the other while a program runs for the first time: after two
seconds of that in a row a line reports it, and again whenever the time has doubled. A whole program
is compiled in one piece, and a timer reports it meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from torch_jax import config
from torch_jax._private import jax_core
from torch_jax.budgets import SECONDS_BEFORE_PROGRESS
from torch_jax.core import compilations, costs


class Row:
    """Operators compiled one after the other."""

    def __init__(self) -> None:
        self.operators, self.seconds, self.ended, self.due = 0, 0.0, 0.0, SECONDS_BEFORE_PROGRESS

    def add(self, start: float, end: float) -> str | None:
        """Add an operator compiled from ``start`` to ``end``; return the line to print, if any.

        >>> row = Row()
        >>> row.add(0.0, 1.5), row.add(1.6, 2.8)
        (None, 'compiling: 2 operators so far, 3 s')
        """
        if start - self.ended > SECONDS_BEFORE_PROGRESS:
            self.operators, self.seconds, self.due = 0, 0.0, SECONDS_BEFORE_PROGRESS
        self.operators += 1
        self.seconds += end - start
        self.ended = end
        if self.seconds < self.due:
            return None
        self.due = 2 * self.seconds
        return f"compiling: {self.operators} operators so far, {self.seconds:.0f} s"


_row = Row()


@contextlib.contextmanager
def operator(name: str) -> Iterator[None]:
    """Measure the first call of one operator; within a trace it is part of a larger program."""
    if not jax_core.is_outside_traces():
        yield
        return
    start = time.perf_counter()
    with costs.measured("compile", name), compilations.or_shared():
        yield
    if (text := _row.add(start, time.perf_counter())) is not None:
        _say(text)


@contextlib.contextmanager
def program(name: str) -> Iterator[None]:
    """Measure the compilation of a whole program, or the search for an equal one."""
    text = f"compiling {name}, for more than {SECONDS_BEFORE_PROGRESS:.0f} s"
    timer = threading.Timer(SECONDS_BEFORE_PROGRESS, _say, [text])
    timer.daemon = True
    if _is_wanted():
        timer.start()
    try:
        with costs.measured("compile", name), compilations.or_shared():
            yield
    finally:
        timer.cancel()


def _is_wanted() -> bool:
    return bool(config.get("progress")) and sys.stderr is not None and sys.stderr.isatty()


def _say(text: str) -> None:
    if _is_wanted():
        kept = "; kept on disk for next time" if config.get("cache") else ""
        print(f"torch_jax: {text}{kept}", file=sys.stderr, flush=True)
