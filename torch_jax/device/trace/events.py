"""A trace of XLA's as events: the device's work, with the host's moment of each launch.

On GPUs and TPUs kernels are in planes of their devices; on the CPU they are those events of the
host's threads that name an instruction of a program. Times are nanoseconds since 1970, like those
of PyTorch's profiler.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch_jax._private import jax_profiler
from torch_jax.device import streams
from torch_jax.device.trace import programs

_HOST, _DEVICE, _CLOCK = "/host:CPU", "/device:", "Task Environment"
_POOLS = "tf_"  # the names of XLA's own threads begin so
_JITTED, _EXECUTES = "PjitFunction(", "LoadedExecutable::ExecuteHelper"
# The lines of a device's plane that are kernels: others repeat them as modules and steps.
_KERNEL_LINES = ("Stream", "XLA Ops")


class Event(NamedTuple):
    """Work of the device or the host: its name, place and time."""

    name: str  # as tables show it: ``aten::mm: dot_general``, or as XLA calls it
    line: str  # the thread or the stream
    begin: int  # nanoseconds since 1970
    end: int
    launched: int | None  # when the host called the program of the event; None where unknown
    is_kernel: bool  # the device worked in that time, rather than the host for it
    is_whole: bool  # kernels lie within it: a loop, whose time is theirs
    frame: str  # the line of Python that it comes from, in a compiled function
    details: dict[str, Any]  # other data of XLA's about it


class _Raw(NamedTuple):
    name: str
    begin: int
    end: int
    stats: dict[str, Any]


def read(trace: bytes) -> list[Event]:
    """Return all events of a trace, in the order of time."""
    data = jax_profiler.read(trace)
    clock = data.find_plane_with_name(_CLOCK)
    start = int(dict(clock.stats)["profile_start_time"]) if clock is not None else 0
    host: dict[str, list[_Raw]] = {}
    device: dict[str, list[_Raw]] = {}
    for plane in data.planes:
        if plane.name == _HOST:
            host |= _lines(plane, start, "")
        elif plane.name.startswith(_DEVICE):
            found = _lines(plane, start, f"{plane.name} ")
            kernels = tuple(f"{plane.name} {one}" for one in _KERNEL_LINES)
            device |= {n: v for n, v in found.items() if n.startswith(kernels)} or found
    lines = host | device
    origins = _origins(programs.origins(trace), itertools.chain(*lines.values()))
    launches = _launches(host)
    events = [
        _event(raw, name, name in device, origins, launches)
        for name, line in lines.items()
        for raw in line
        if raw.end > raw.begin and not raw.name.startswith("end: ")
        if raw.stats.get("hlo_module") != f"jit_{streams.FENCE}"  # which no user ran
    ]
    return _wholes(sorted(events, key=lambda event: (event.begin, -event.end)))


def _lines(plane: Any, start: int, prefix: str) -> dict[str, list[_Raw]]:
    found: dict[str, list[_Raw]] = {}
    for at, line in enumerate(plane.lines):
        events = []
        for event in line.events:
            begin, end = int(event.start_ns), int(event.start_ns + event.duration_ns)
            events.append(_Raw(event.name, start + begin, start + end, dict(event.stats)))
        found[f"{prefix}{line.name} #{at}"] = sorted(events, key=lambda raw: raw.begin)
    return found


def _event(
    raw: _Raw,
    line: str,
    is_on_device: bool,
    origins: dict[tuple, dict[str, programs.Origin]],
    launches: dict[Any, int],
) -> Event:
    is_kernel = is_on_device or "hlo_op" in raw.stats
    run = launches.get(_run(raw)) if is_kernel else None
    origin = None
    if is_kernel:  # by the name of the program where there is no other
        program = _run(raw)[:2]
        origin = origins.get(program, {}).get(raw.stats.get("hlo_op", ""))
        if not (origin and origin.operator):
            origin = programs.of_name(str(program[0])) or origin
    plain = re.sub(r"\.\d+$", "", raw.name)
    details = {name: value for name, value in raw.stats.items() if not name.startswith("_")}
    if origin is not None:
        details |= {"operator": origin.operator, "jax": origin.path, "python": origin.line}
    return Event(
        name=f"{origin.operator}: {plain}" if origin and origin.operator else plain,
        line=line,
        begin=raw.begin,
        end=raw.end,
        launched=launches.get(raw.stats.get("correlation_id"), run) if is_kernel else None,
        is_kernel=is_kernel,
        is_whole=False,
        frame=origin.line if origin and "torch_jax_" in origin.path else "",
        details=details,
    )


def _origins(
    known: list[programs.Program], raws: Iterable[_Raw]
) -> dict[tuple, dict[str, programs.Origin]]:
    """Return the origins of the instructions of each program that ran.

    Traces and running programs have different numbers: a program is found by its name and by the
    instructions that ran.
    """
    ran: dict[tuple, set[str]] = defaultdict(set)
    for raw in raws:
        if "hlo_op" in raw.stats:
            ran[_run(raw)[:2]].add(raw.stats["hlo_op"])
    found = {}
    for program, instructions in ran.items():
        named = [one.origins for one in known if one.name == program[0]]
        found[program] = max(named, key=lambda some: len(instructions & some.keys()), default={})
    return found


def _wholes(events: list[Event]) -> list[Event]:
    """Return the same events; those with kernels within them on their line are marked."""
    open_ones: dict[str, int] = {}
    marked = list(events)
    for at, event in enumerate(events):
        if event.is_kernel:
            above = open_ones.get(event.line)
            if above is not None and event.end <= events[above].end:
                marked[above] = marked[above]._replace(is_whole=True)
            open_ones[event.line] = at
    return marked


def _launches(host: dict[str, list[_Raw]]) -> dict[Any, int]:
    """Return the host's calls that started programs, by their numbers and by the runs.

    Kernels of GPUs carry the number of their call. On the CPU runs of a program have numbers that
    its calls do not carry: calls of programs of one name, and runs of these, are paired, each in
    the order of time.
    """
    numbered: dict[Any, int] = {}
    begins: dict[tuple, int] = {}  # of runs
    calls: dict[str, list[int]] = defaultdict(list)
    for line, found in host.items():
        for raw in found:
            if "hlo_module" in raw.stats:
                run = _run(raw)
                begins[run] = min(begins.get(run, raw.begin), raw.begin)
            elif "correlation_id" in raw.stats:
                numbered[raw.stats["correlation_id"]] = raw.begin
        if not line.startswith(_POOLS):
            for name, moment in _calls(found):
                calls[name].append(moment)
    return numbered | _pairs(calls, begins)


def _run(raw: _Raw) -> tuple:
    return tuple(raw.stats.get(name) for name in ("hlo_module", "program_id", "run_id"))


def _calls(line: list[_Raw]) -> Iterator[tuple[str, int]]:
    """Yield a thread's calls of programs: the module's name, empty if unknown, and the time."""
    name, until = "", 0
    for raw in line:
        if raw.name.startswith(_JITTED):
            # executables are called as PjitFunction(jit(name)), functions as PjitFunction(name)
            name, until = raw.name.removeprefix(_JITTED).removeprefix("jit(").rstrip(")"), raw.end
        elif _EXECUTES in raw.name:
            module = "jit_" + re.sub(r"[^\w.-]", "_", name)
            yield module if raw.begin <= until else "", raw.begin


def _pairs(calls: dict[str, list[int]], begins: dict[tuple, int]) -> dict[tuple, int]:
    """Return the call of each run.

    Pairs are made from the last on: runs of earlier calls may remain when a trace begins.
    """
    runs: dict[str, list[tuple]] = defaultdict(list)
    for run in sorted(begins, key=begins.__getitem__, reverse=True):
        runs[run[0] if run[0] in calls else ""].append(run)
    pairs = {}
    for name, found in runs.items():
        left = sorted(calls.get(name, ()))
        for run in found:
            while left and left[-1] > begins[run]:
                left.pop()  # a call without a run
            if left:
                pairs[run] = left.pop()
    return pairs
