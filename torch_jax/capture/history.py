"""Keep what happened under ``torch_jax.jit``, and why: recorded calls, traces, fallbacks."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch_jax.core import compilations, log
from torch_jax.core.compilations import NOTHING, Counts

_MANY = 4  # retraces of one function after which a warning names the cause

_NOTES = 100  # how many are kept: a function with ever new reasons would fill the memory


class Retrace(NamedTuple):
    """Why a function was traced again."""

    reason: str
    seconds: float


class Explanation(NamedTuple):
    """Hold what happened to one function; prints as a few lines.

    Attributes:
      name: of the function.
      recorded: calls whose Python ran, and whose operators were recorded.
      recorded_programs: what XLA has done for these calls, while they waited.
      traces: how often the function was traced.
      trace_seconds: how long that took, without XLA.
      traced_programs: what XLA has done for the traces.
      retraces: why it was traced again.
      captured: how many tensors the last trace captured.
      donated: how many memories its program may write over.
      lifted: how many numbers it reads at each call.
      notes: why Python runs at each call, and why traces were not kept.
    """

    name: str
    recorded: int
    recorded_programs: Counts
    traces: int
    trace_seconds: float
    traced_programs: Counts
    retraces: tuple[Retrace, ...]
    captured: int
    donated: int
    lifted: int
    notes: tuple[str, ...]

    @property
    def programs(self) -> Counts:
        """Return what XLA has done for all calls."""
        return self.recorded_programs.plus(self.traced_programs)

    @property
    def compiles(self) -> int:
        """Return how many programs XLA compiled for all calls."""
        return self.programs.compiled

    @property
    def compile_seconds(self) -> float:
        """Return how long XLA took to compile them."""
        return self.programs.compile_seconds

    def __str__(self) -> str:
        lines = []
        if self.recorded:
            lines.append(f"{self.recorded} calls were recorded: {self.recorded_programs}")
        if self.traces:
            lines += [
                f"{self.traces} traces ({self.trace_seconds:.2f} s): {self.traced_programs}",
                f"  the last one captured {self.captured} tensors, donates {self.donated}, and "
                f"reads {self.lifted} numbers at each call",
            ]
        lines += [f"  traced again: {r.reason} ({r.seconds:.2f} s)" for r in self.retraces]
        lines += [f"  {note}" for note in self.notes]
        return f"{self.name}: " + ("\n  ".join(lines) or "neither recorded nor traced")

    def __repr__(self) -> str:
        return str(self)


class History:
    """The history of one function."""

    def __init__(self, name: str):
        self.name = name
        self.traces = self.recorded = 0
        self.trace_seconds = 0.0
        self.traced_programs = self.recorded_programs = NOTHING
        self.retraces: list[Retrace] = []
        self.last: tuple[int, int, int] = (0, 0, 0)  # captured, donated, numbers
        self.notes: list[str] = []
        _histories.add(self)

    @contextlib.contextmanager
    def recorded_call(self) -> Iterator[None]:
        """Count the block, a call that is recorded."""
        self.recorded += 1
        before = compilations.here()
        try:
            yield
        finally:
            done = compilations.here().minus(before)
            self.recorded_programs = self.recorded_programs.plus(done)

    def note_trace(self, reason: str | None, replay: Any, seconds: float, programs: Counts) -> None:
        """A trace was made and compiled; ``seconds`` are for both."""
        program = replay.program
        self.traces += 1
        self.trace_seconds += seconds - programs.seconds
        self.traced_programs = self.traced_programs.plus(programs)
        self.last = replay.captured_count, len(program.donated), len(program.numbers)
        log.traces(self.name, reason, seconds)
        if reason is not None:
            self.retraces.append(Retrace(reason, seconds))
            if len(self.retraces) == _MANY:
                self._warn()

    def _warn(self) -> None:
        reasons = "; ".join(dict.fromkeys(r.reason for r in self.retraces))
        warnings.warn(
            f"{self.name} was traced {self.traces} times, which takes seconds each: {reasons}. "
            "Call its .explain() for more.",
            stacklevel=9,
        )

    def not_kept(self, why: str) -> None:
        """A trace cannot stand for later calls."""
        note = f"not kept: {why}"
        if note not in self.notes:
            self.notes.append(note)

    def runs_python(self, why: str) -> None:
        """Python runs at each call that is like this one."""
        note = f"Python runs at each call: {why}"
        if note not in self.notes and len(self.notes) < _NOTES:
            self.notes.append(note)

    def explanation(self) -> Explanation:
        """The history so far."""
        return Explanation(
            self.name, self.recorded, self.recorded_programs,
            self.traces, self.trace_seconds, self.traced_programs,
            tuple(self.retraces), *self.last, tuple(self.notes),
        )  # fmt: skip


_histories: weakref.WeakSet[History] = weakref.WeakSet()


def explain(function: Any = None) -> Any:
    """Return what happened under :func:`torch_jax.jit` to one function or module, or to all.

    Args:
      function: a compiled function, or a module that was compiled in place. For one, the result
        is its :class:`Explanation`; without, a text of all.

    Raises:
      TypeError: it is not compiled.

    >>> isinstance(explain(), str)
    True
    """
    if function is not None:
        compiled = getattr(function, "_compiled_call_impl", None) or function
        found = getattr(compiled, "history", None)
        if not isinstance(found, History):
            raise TypeError(f"{function!r} is not compiled with torch_jax.jit")
        return found.explanation()
    lines = [str(one.explanation()) for one in sorted(_histories, key=lambda h: h.name)]
    return "\n".join(lines) or "no function has been compiled with torch_jax.jit"
