"""The page of a profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch_jax.budgets import ROWS_OF_A_TABLE, SHARE_WORTH_A_ROW
from torch_jax.observe.running.page import from_here

if TYPE_CHECKING:
    from torch_jax.observe.profiling.kernels import Kernels
    from torch_jax.observe.profiling.profile import Profile


def lines_of(found: Profile) -> Iterator[str]:
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
    for part, seconds in sorted(found.parts.items(), key=lambda one: -one[1]):
        if seconds >= SHARE_WORTH_A_ROW * found.seconds:
            yield _row(seconds, found, f"{part}{_NOTES.get(part, '')}")
    yield from _python_lines(found)
    yield f"Kernels of XLA{unit} (threads added up):"
    total = sum(kernel.seconds for kernel in found.kernels)
    yield _row(total, found, "all of them")
    yield _row(found.moves, found, "of these, copies and changes of layout")
    for kernel in found.kernels[:ROWS_OF_A_TABLE]:
        if kernel.seconds >= SHARE_WORTH_A_ROW * total:
            yield _row(kernel.seconds, found, f"{_named(kernel)}{_at(kernel.line)}", kernel.times)
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
    rows = list(found.python_lines.items())[:ROWS_OF_A_TABLE]
    if rows:
        yield "Lines of yours in which Python was, with all that they called:"
    for (file, line, function), count in rows:
        seconds = found.seconds * count / looks
        if count >= SHARE_WORTH_A_ROW * looks:
            yield _row(seconds, found, f"{from_here(file)}:{line}, in {function}")


def _row(seconds: float, found: Profile, text: str, count: int = 0) -> str:
    times = f"{count / found.calls:6.4g} x" if count else " " * 8
    return f"  {_time(seconds / found.calls):>10} {times}  {text}"


def _named(kernel: Kernels) -> str:
    return f"{kernel.operator}: {kernel.name}" if kernel.operator else kernel.name


def _at(line: str) -> str:
    shown = _shown(line)
    return f", {shown}" if shown else ""


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
