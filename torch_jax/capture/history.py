"""What happened under ``torch_jax.jit``, and why: traces, compiles, captures, fallbacks."""

from __future__ import annotations

import warnings
import weakref
from typing import Any, NamedTuple

from torch_jax.core import log

_MANY = 4  # retraces of one function after which a warning names the cause

_NOTES = 100  # how many are kept: a function with ever new reasons would fill the memory


class Retrace(NamedTuple):
    """Why a function was traced again."""

    reason: str
    seconds: float


class Explanation(NamedTuple):
    """What happened to one function; prints as a few lines."""

    name: str
    traces: int
    compiles: int
    trace_seconds: float
    compile_seconds: float
    retraces: tuple[Retrace, ...]
    captured: int
    donated: int
    lifted: int
    recorded: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.traces} traces ({self.trace_seconds:.2f} s), {self.compiles} "
            f"compiles ({self.compile_seconds:.2f} s)",
            f"  the last one captured {self.captured} tensors, donates {self.donated}, and reads "
            f"{self.lifted} numbers at each call",
        ]
        lines += [f"  traced again: {r.reason} ({r.seconds:.2f} s)" for r in self.retraces]
        if self.recorded:
            lines.append(f"  {self.recorded} calls were recorded: Python ran")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return str(self)


class History:
    """The history of one function."""

    def __init__(self, name: str):
        self.name = name
        self.traces = self.compiles = self.recorded = 0
        self.trace_seconds = self.compile_seconds = 0.0
        self.retraces: list[Retrace] = []
        self.last: tuple[int, int, int] = (0, 0, 0)  # captured, donated, numbers
        self.notes: list[str] = []
        _histories.add(self)

    def note_trace(self, reason: str | None, replay: Any, seconds: float) -> None:
        """A trace was made and compiled; ``seconds`` are for both."""
        program = replay.program
        self.traces += 1
        self.trace_seconds += seconds - program.seconds
        self.compiles += not program.reused
        self.compile_seconds += program.seconds
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
            self.name, self.traces, self.compiles, self.trace_seconds, self.compile_seconds,
            tuple(self.retraces), *self.last, self.recorded, tuple(self.notes),
        )  # fmt: skip


_histories: weakref.WeakSet[History] = weakref.WeakSet()


def explain(function: Any = None) -> Any:
    """What happened under :func:`torch_jax.jit`: to one function or module, or to all there are.

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
