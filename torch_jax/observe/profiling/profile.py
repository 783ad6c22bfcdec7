"""The time of calls, in Python and in XLA's kernels: ``torch_jax.profile(function, ...)``.

``python -m torch_jax profile script.py`` prints that of a script.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch_jax._private import jax_profiler
from torch_jax.budgets import ROWS_OF_A_TABLE, SHARE_WORTH_A_ROW
from torch_jax.core import compilations
from torch_jax.device import streams
from torch_jax.device.trace import events
from torch_jax.device.trace.events import Event
from torch_jax.observe.profiling.samples import Sampler
from torch_jax.observe.running import script
from torch_jax.observe.running.page import from_here

# Kernels that only move data, by XLA's names of them.
_MOVES = re.compile(r"^(wrapped_)?(copy|transpose|bitcast|concatenate|slice|pad|convert)")
_COMPUTES = re.compile(r"add|mul|div|sub|exp|log|tanh|reduce|dot|conv|max|min|select|compare|power")


class Kernels(NamedTuple):
    """Kernels that are reported as one, with their time and number."""

    name: str
    operator: str
    line: str
    seconds: float
    times: int


@dataclass(frozen=True)
class Profile:
    """The time of calls, in parts; ``str`` of it is a page for people, ``vars`` of it for programs.

    The device's work is in none of the parts of Python's work (:mod:`.samples`), unless Python
    waited for it. Seconds of kernels are of each thread or stream by itself.
    """

    what: str  # the function, or the script
    calls: int  # that the seconds below are of
    seconds: float  # from the begin of the first call to the end of the last one's work
    busy: float  # how long any kernel ran on the device
    parts: dict[str, float]  # seconds of each part of Python's work, the longest first
    compiles: int  # how many programs were compiled
    loaded: int  # and loaded from disk
    kernels: list[Kernels]  # of XLA, by name and line
    lines: list[Kernels]  # the same by line of the user's alone
    moves: float  # seconds of kernels that only copy
    python_lines: dict[tuple[str, int, str], int]  # samples, by file, line and function
    is_script: bool = False  # a whole script was run, from its imports on

    def __str__(self) -> str:
        return "\n".join(_lines_of(self))


def profile(
    function: Callable[..., Any], *args: Any, calls: int = 10, warm_up: int = 12, **kwargs: Any
) -> Profile:
    """Call a function and return the parts of its time: in Python, in guards, in which kernels.

    Args:
      function: a training step, a model: anything that works on device ``jax``.
      *args: its arguments, and ``kwargs`` those by name.
      calls: the number of calls that are measured.
      warm_up: the number of calls before, in which a function under :func:`torch_jax.jit` is
        compiled.

    Raises:
      RuntimeError: another trace of JAX's profiler is under way in this process.
      ValueError: ``calls`` is less than 1.

    >>> import torch, torch_jax
    >>> x = torch.ones(72, 72, device="jax")
    >>> found = torch_jax.profile(torch_jax.jit(torch.mm), x, x, calls=3)
    >>> found.calls, found.busy < found.seconds
    (3, True)
    >>> [kernel.times for kernel in found.kernels if kernel.operator == "aten::mm"]  # beside others
    [3]
    """
    if calls < 1:
        raise ValueError(f"at least one call is measured, not {calls}")
    for _ in range(warm_up):
        function(*args, **kwargs)
    streams.synchronize()
    with Profiling() as profiling:
        for _ in range(calls):
            function(*args, **kwargs)
    name = getattr(function, "__qualname__", type(function).__name__)
    return profiling.profile(name, calls)


class Profiling:
    """Samples this thread and traces the device while it is open."""

    def __enter__(self) -> Profiling:
        self._before = compilations.own()
        self._session = jax_profiler.start()
        self._start = time.perf_counter()
        self._sampler = Sampler(threading.get_ident()).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._sampler.__exit__()
            streams.synchronize()
        finally:
            self._seconds = time.perf_counter() - self._start
            self._trace = jax_profiler.stop(self._session)
            self._programs = compilations.own().minus(self._before)

    def profile(self, what: str, calls: int, is_script: bool = False) -> Profile:
        """Return the profile."""
        found = [e for e in events.read(self._trace) if e.is_kernel and not e.is_whole]
        sampler = self._sampler
        each = sampler.seconds / max(sampler.parts.total(), 1)
        return Profile(
            what=what,
            calls=calls,
            seconds=self._seconds,
            busy=_busy(found),
            parts={part: looks * each for part, looks in sampler.parts.most_common()},
            compiles=self._programs.compiled,
            loaded=self._programs.loaded,
            kernels=_added_up(found, lambda event: (event.name, _line_of(event))),
            lines=_added_up(found, _line_of),
            moves=sum(e.end - e.begin for e in found if _is_move(e)) / 1e9,
            python_lines=dict(sampler.lines.most_common()),
            is_script=is_script,
        )


# --- the command ----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; arguments after the script's name are the script's."""
    parser.add_argument("--report", metavar="FILE.json", help="write the profile as JSON, too")
    script.add_arguments(parser)


def answer(given: argparse.Namespace) -> int:
    """Run the script, and print the profile on stderr; returns the script's exit status."""
    if not (program := script.named(given)):
        return 2
    with Profiling() as profiling:
        status = script.run(program, given.module is not None)
    found = profiling.profile(program[0], 1, is_script=True)
    if given.report:
        lists = {n: [one._asdict() for one in vars(found)[n]] for n in ("kernels", "lines")}
        lists["python_lines"] = [
            {"file": file, "line": line, "function": function, "looks": looks}
            for (file, line, function), looks in found.python_lines.items()
        ]
        Path(given.report).write_text(json.dumps(vars(found) | lists, indent=1))
    sys.stdout.flush()
    print(found, file=sys.stderr)
    return status


# --- kernels --------------------------------------------------------------------------------------


def _added_up(events: Iterable[Event], of: Callable[[Event], Any]) -> list[Kernels]:
    """Return kernels that are alike by ``of`` as one, in order of their time, the longest first."""
    groups: dict[Any, list[Event]] = {}
    for event in events:
        groups.setdefault(of(event), []).append(event)
    found = []
    for first, *others in groups.values():
        operator, name = str(first.details.get("operator", "")), _plain(first)
        seconds = sum(event.end - event.begin for event in (first, *others)) / 1e9
        found.append(Kernels(name, operator, _line_of(first), seconds, 1 + len(others)))
    return sorted(found, key=lambda one: -one.seconds)


def _plain(event: Event) -> str:
    return event.name.rpartition(": ")[2]


def _line_of(event: Event) -> str:
    """Return the line of Python that a kernel comes from, or ''."""
    return str(event.details.get("python", ""))


def _is_move(event: Event) -> bool:
    """Return whether a kernel computes nothing: a copy, or a change of layout.

    >>> names = "copy", "transpose_copy_fusion", "copy_add_fusion", "dot"
    >>> [_is_move(Event(name, "", 0, 1, None, True, False, "", {})) for name in names]
    [True, True, False, False]
    """
    name = _plain(event)
    return bool(_MOVES.match(name)) and not _COMPUTES.search(name)


def _busy(events: Iterable[Event]) -> float:
    """Return the seconds in which any kernel ran: several at once count once.

    >>> spans = (0, 2), (1, 3), (5, 6)
    >>> _busy(Event("", "", a * 10**9, b * 10**9, None, True, False, "", {}) for a, b in spans)
    4.0
    """
    total, until = 0, 0
    for event in sorted(events, key=lambda event: event.begin):
        total += max(event.end - max(event.begin, until), 0)
        until = max(until, event.end)
    return total / 1e9


# --- as text --------------------------------------------------------------------------------------


def _lines_of(found: Profile) -> Iterator[str]:
    """Yield the lines: Python's work, the kernels that ran, and the user's lines of these."""
    of = f", {found.calls} calls" if found.calls > 1 else ""
    each = f" ({_time(found.seconds / found.calls)} each)" if found.calls > 1 else ""
    yield f"torch_jax: {found.what}{of}: {_time(found.seconds)}{each}"
    share = found.busy / max(found.seconds, 1e-9)
    unit = " of the whole script" if found.is_script else ", a call"
    yield f"  the device was busy {_time(found.busy / found.calls)}{unit}, {share:.0%} of the time"
    if found.compiles or found.loaded:
        later = (
            "more steps of the script have less of that, and torch_jax.profile(step) has none"
            if found.is_script
            else "look at later calls, too (warm_up=)"
        )
        yield f"  {found.compiles} programs were compiled, {found.loaded} loaded from disk: {later}"
    yield f"Python{unit}:"
    for part, seconds in found.parts.items():
        if seconds >= SHARE_WORTH_A_ROW * found.seconds:
            yield _row(seconds, found, f"{part}{_NOTES.get(part, '')}")
    yield from _python_lines(found)
    yield f"Kernels of XLA{unit} (threads added up):"
    total = sum(kernel.seconds for kernel in found.kernels)
    yield _row(total, found, "all of them")
    yield _row(found.moves, found, "of these, copies and changes of layout")
    for kernel in found.kernels[:ROWS_OF_A_TABLE]:
        if kernel.seconds >= SHARE_WORTH_A_ROW * total:
            name = f"{kernel.operator}: {kernel.name}".removeprefix(": ")
            place = f"{name}, {_shown(kernel.line)}".removesuffix(", ")
            yield _row(kernel.seconds, found, place, kernel.times)
    yield "Lines that these kernels come from:"
    for kernel in found.lines[:ROWS_OF_A_TABLE]:
        if kernel.seconds >= SHARE_WORTH_A_ROW * total:
            where = _shown(kernel.line) or "no line is known: an operator run by itself, or XLA's"
            yield _row(kernel.seconds, found, where, kernel.times)


_NOTES = {
    "looking at values": ": waiting for the device",
    "launching": ": on the CPU, small programs run in it",
}


def _python_lines(found: Profile) -> Iterator[str]:
    looks = sum(found.python_lines.values())
    if rows := list(found.python_lines.items())[:ROWS_OF_A_TABLE]:
        yield "Lines of yours in which Python was, with all that they called:"
    for (file, line, function), count in rows:
        seconds = found.seconds * count / looks
        if count >= SHARE_WORTH_A_ROW * looks:
            yield _row(seconds, found, f"{from_here(file)}:{line}, in {function}")


def _row(seconds: float, found: Profile, text: str, count: int = 0) -> str:
    times = f"{count / found.calls:6.4g} x" if count else " " * 8
    return f"  {_time(seconds / found.calls):>10} {times}  {text}"


def _shown(line: str) -> str:
    """Return a line in XLA's notation as people write it.

    >>> _shown("/home/me/train.py(12): Model.forward")
    '/home/me/train.py:12, in Model.forward'
    """
    match = re.fullmatch(r"(.*)\((\d+)\): (.*)", line)
    return f"{from_here(match[1])}:{match[2]}, in {match[3]}" if match else line


def _time(seconds: float) -> str:
    """Return a time in a readable unit.

    >>> _time(1.5), _time(0.0015), _time(2e-6)
    ('1.50 s', '1.50 ms', '2.0 us')
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} us"
