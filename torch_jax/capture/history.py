"""Keep what happened under ``torch_jax.jit``, and why: recorded calls, and those observed."""

from __future__ import annotations

import contextlib
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch_jax.budgets import (
    CALLS_BEFORE_HINT,
    EXPLANATIONS_KEPT,
    PLACES_REMEMBERED,
    RUNS_BEFORE_WARNING,
    RUNS_TO_PAY_FOR_A_PROGRAM,
    SHARE_WORTH_A_HINT,
)
from torch_jax.core import compilations, log
from torch_jax.core.compilations import NOTHING, Counts
from torch_jax.core.node import Node
from torch_jax.recorded.path import State
from torch_jax.recorded.program import Listener, Program


class Explanation(NamedTuple):
    """Hold what happened to one function; prints as a few lines."""

    name: str  # of the function
    recorded: int  # calls whose Python ran, and whose operators were recorded
    recorded_programs: Counts  # what XLA has done for these calls, while they waited
    observed: int  # calls of a pure function whose Python ran once for all calls like them
    observed_programs: Counts  # what XLA has done for these
    reasons: tuple[str, ...]  # why Python ran again
    captured: int  # how many tensors that are no arguments the last program reads
    donated: int  # how many memories it may write over
    numbers: int  # how many numbers it reads at each call
    notes: tuple[str, ...]  # why Python runs at each call, and what would pay

    @property
    def programs(self) -> Counts:
        """Return what XLA has done for all calls."""
        return self.recorded_programs.plus(self.observed_programs)

    @property
    def compiles(self) -> int:
        """Return how many programs XLA compiled for all calls."""
        return self.programs.compiled

    @property
    def compile_seconds(self) -> float:
        """Return how long XLA took to compile them."""
        return self.programs.compile_seconds

    def __repr__(self) -> str:
        lines = []
        if self.recorded:
            lines.append(f"{self.recorded} calls were recorded: {self.recorded_programs}")
        if self.observed:
            lines += [
                f"{self.observed} calls were observed, and serve others like them: "
                f"{self.observed_programs}",
                f"  the last program captured {self.captured} tensors, donates {self.donated}, and "
                f"reads {self.numbers} numbers at each call",
            ]
        lines += [f"  Python ran again: {reason}" for reason in self.reasons]
        lines += [f"  {note}" for note in self.notes]
        return f"{self.name}: " + ("\n  ".join(lines) or "not called yet")


class History(Listener):
    """The history of one function; ``now`` is what happened so far.

    It hears of the graphs of recorded calls, for a hint: if all calls record one and the same graph
    and Python takes much of the time, ``jit(pure=True)`` would pay. Nothing is proven by that.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self.now = Explanation(name, 0, NOTHING, 0, NOTHING, (), 0, 0, 0, ())
        self._graphs: list[int] = []
        self._small: set[int] = set()  # operators that have begun pieces of few elements
        self._last: list[int] = []
        self._alike = self._reruns = self._begun = 0
        self._begin = self._python = self._first = 0.0
        _histories.add(self)

    def before(self, state: State, numbers: list[Any], arrays: list[Any]) -> None:
        if not self._graphs:
            self._python += time.perf_counter() - self._begin

    def after(self, state: State, nodes: list[Node], program: Program | None) -> None:
        self._graphs.append(id(state))

    def passed(self, beginning: int, is_small: bool) -> None:
        self._graphs.append(beginning)
        if is_small and len(self._small) < PLACES_REMEMBERED:
            self._small.add(beginning)

    def begins_small(self, call: int) -> bool:
        """Return whether operators after a look at a value are faster without a program."""
        return call in self._small and self._looks()

    def _looks(self) -> bool:
        return bool(self._graphs) or len(self._last) > 1

    def begins(self, is_early: bool = False) -> bool:
        """Return whether to record one more graph, where its operators can run at once.

        Code that looks at values may have other sizes at each call: as many are traced and compiled
        as the runs that found a program have been worth.
        """
        if (is_early or self._looks()) and self.hits < RUNS_TO_PAY_FOR_A_PROGRAM * self._begun:
            return False
        self._begun += 1
        return True

    @contextlib.contextmanager
    def recorded_call(self) -> Iterator[None]:
        """Count the block, a call that is recorded, and give the hint, once, when it is due."""
        self.now = self.now._replace(recorded=self.now.recorded + 1)
        before = compilations.here()
        self._begin, self._graphs = time.perf_counter(), []
        try:
            yield
        finally:
            programs = self.now.recorded_programs.plus(compilations.here().minus(before))
            self.now = self.now._replace(recorded_programs=programs)
            self._compare()

    def _compare(self) -> None:
        """Compare the graphs of a call that has ended with those of the one before."""
        if self._graphs != self._last or len(self._graphs) != 1:
            self._last, self._alike, self._python = self._graphs, 0, 0.0
            self._first = time.perf_counter()  # behind this call, which may have compiled
            return
        self._alike += 1
        if self._alike != CALLS_BEFORE_HINT:
            return
        python = self._python / CALLS_BEFORE_HINT * 1e3
        step = (time.perf_counter() - self._first) / CALLS_BEFORE_HINT * 1e3
        if python >= SHARE_WORTH_A_HINT * step:
            hint = (
                f"{self._alike} calls, one graph; Python takes {python:.2f} of {step:.2f} ms: "
                "jit(pure=True) would skip it"
            )
            self.note(hint)
            log.LOGGER.info("%s: %s", self.name, hint)

    def note_observed(
        self, reason: str | None, replay: Any, seconds: float, programs: Counts
    ) -> None:
        """Note an observed call of a pure function, and the seconds that all of it took."""
        now, sizes = self.now, {} if replay is None else replay.sizes()
        programs = now.observed_programs.plus(programs)
        self.now = now._replace(observed=now.observed + 1, observed_programs=programs, **sizes)
        log.LOGGER.info("observed %s in %.2f s: %s", self.name, seconds, reason or "its first call")

    def note_rerun(self, reason: str | None) -> None:
        """Note why Python runs again, if it does."""
        now = self.now
        if reason is None:
            return
        self._reruns += 1
        if len(now.reasons) < EXPLANATIONS_KEPT:
            self.now = now._replace(reasons=(*now.reasons, reason))
        most, text = self.warning("; ".join(dict.fromkeys(self.now.reasons)))
        if self._reruns == most:
            warnings.warn(f"{self.name} {text}", stacklevel=6)

    def warning(self, reasons: str) -> tuple[int, str]:
        """Return after how many kinds of calls to warn, and how."""
        text = f"is pure, and yet its Python ran {self._reruns + 1} times: {reasons}"
        return RUNS_BEFORE_WARNING, f"{text}. Call its .explain()"

    def gives_up(self, why: str, stacklevel: int) -> None:
        """Say that Python runs at each call from now on."""
        self.note(f"Python runs at each call: {why}")
        warnings.warn(why, stacklevel=stacklevel)

    def note(self, note: str) -> None:
        """Note why Python runs at each call, or what would pay."""
        if note not in self.now.notes and len(self.now.notes) < EXPLANATIONS_KEPT:
            self.now = self.now._replace(notes=(*self.now.notes, note))


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
        return found.now
    lines = [str(one.now) for one in sorted(_histories, key=lambda h: h.name)]
    return "\n".join(lines) or "no function has been compiled with torch_jax.jit"
