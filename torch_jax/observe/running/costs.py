"""The costs of a script, by its own lines: collected in each of its processes, and put together.

A line is looked up only at a costly event – a compilation, a copy, an operator on the CPU –, so
that quick operators stay quick.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing.util
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from torch_jax.core import costs, user_code, waking
from torch_jax.core.compilations import Counts
from torch_jax.core.costs import Cost
from torch_jax.eager import bound

VARIABLE = "TORCH_JAX_RUN"  # the folder in which children of the script leave their costs
_PLACE = ("kind", "file", "line", "function")
_SUMS = ("count", "visits", "seconds", "bytes", *Counts._fields)  # the numbers of a row


class Costs:
    """Costs so far: by kind and line, how often, in how many visits, and their sums.

    A visit is a call that the line has made: a step of an optimizer, which compiles for each of
    its parameters, is one.
    """

    def __init__(self, at_first: Callable[[], Any] = lambda: None) -> None:
        """Take ``at_first``, which is called at the first cost."""
        self._lock, self._at_first = threading.Lock(), at_first
        self.rows: dict[tuple, dict[str, Any]] = {}

    def add(self, cost: Cost) -> None:
        """Add a cost; its line is that of the innermost code of the user's own."""
        frame, called = _own_frame(sys._getframe())
        here, is_new = line_of(frame) or ("", 0, ""), False
        if cost.kind == "compile" and called is not None:
            # the call's frame gets a mark: only a debugger's own tracer reads it, and there is none
            is_new, called.f_trace_lines = called.f_trace_lines, False
        numbers = (1, int(is_new), cost.seconds, cost.bytes, *cost.programs)
        row = dict(zip((*_PLACE, *_SUMS), (cost.kind, *here, *numbers), strict=True))
        with self._lock:
            if not self.rows:
                self._at_first()
            _add_up(self.rows, row | {"what": {cost.what: 1} if cost.what else {}})

    def listed(self) -> list[dict[str, Any]]:
        """Return the rows, for JSON."""
        with self._lock:
            return [dict(row) for row in self.rows.values()]


def _add_up(rows: dict[tuple, dict[str, Any]], row: dict[str, Any]) -> None:
    """Add the numbers of a row to those of its kind and line."""
    place = {name: row[name] for name in _PLACE}
    new = place | dict.fromkeys(_SUMS, 0) | {"what": {}}
    known = rows.setdefault(tuple(place.values()), new)
    for name in _SUMS:
        known[name] += row[name]
    known["what"] = dict(Counter(known["what"]) + Counter(row["what"]))


def _own_frame(frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
    """Return the innermost frame of the user's own code, and the frame that it has called."""
    called = None
    while frame is not None and (
        frame.f_code.co_filename.startswith("<") or user_code.is_library(frame.f_code.co_filename)
    ):
        called, frame = frame, frame.f_back
    return frame, called


def line_of(frame: FrameType | None) -> tuple[str, int, str] | None:
    """Return the line of the user's code that a frame or its nearest caller runs, or None."""
    frame, _ = _own_frame(frame)
    if frame is None:
        return None
    return os.path.abspath(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name


_costs = Costs()


def listen(at_first: Callable[[], Any] = lambda: None) -> None:
    """Collect costs from here on, and in forked children, too."""
    global _costs
    _costs = Costs(at_first)
    costs.listener = _costs.add
    multiprocessing.util.register_after_fork(Costs, lambda _: _begin_in_a_fork())


def stop() -> None:
    """Collect no longer."""
    costs.listener = None


def measured() -> dict[str, Any]:
    """Return the costs of this process, and its device."""
    found = {"is_used": waking.is_awake(), "rows": _costs.listed()}
    if not found["is_used"]:
        return found | {"device": "", "peak_bytes": 0, "operators": []}
    module = torch.get_device_module("jax")
    properties = module.get_device_properties()
    count = f"{properties.chips} x " if properties.chips > 1 else ""
    device = f"{count}{properties.platform} ({properties.name})"
    peak = module.max_memory_allocated()
    return found | {"device": device, "peak_bytes": peak, "operators": bound.names()}


# --- children of the script -----------------------------------------------------------------------


def follow() -> None:
    """Collect costs in a process that the script has started, and leave them at its end.

    They are written before JAX ends, and ``atexit`` calls the last registered function first. JAX
    registers at its import, so this one does at the first cost.
    """
    listen(lambda: atexit.register(_leave))


def _begin_in_a_fork() -> None:
    """Begin in a forked child without its parent's costs; it ends without ``atexit``."""
    if costs.listener is not None:
        listen()
        multiprocessing.util.Finalize(None, _leave, exitpriority=1)


def _leave() -> None:
    folder = os.environ.get(VARIABLE, "")
    if not os.path.isdir(folder) or not _costs.rows:
        return
    stop()
    handle, _ = tempfile.mkstemp(suffix=".json", dir=folder)
    with open(handle, "w") as file:
        json.dump(measured(), file)


def gathered(folder: str) -> list[dict[str, Any]]:
    """Return the costs of this process and its children."""
    left = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    return [measured(), *left]


def together(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the costs of several processes as those of one.

    >>> row = {"kind": "compile", "file": "a.py", "line": 3, "function": "f", "count": 1}
    >>> row |= {"visits": 1, "seconds": 0.5, "bytes": 0, "what": {"aten::add": 1}}
    >>> row |= Counts(1, 0.5)._asdict()
    >>> process = {"is_used": True, "device": "cpu", "peak_bytes": 8, "rows": [row]}
    >>> both = together([process | {"operators": ["aten::add"]}] * 2)
    >>> both["processes"], both["rows"][0]["count"], both["rows"][0]["what"], both["operators"]
    (2, 2, {'aten::add': 2}, ['aten::add'])
    """
    rows: dict[tuple, dict[str, Any]] = {}
    for process in found:
        for row in process["rows"]:
            _add_up(rows, row)
    used = [process for process in found if process["is_used"]]
    return {
        "processes": len(used),
        "device": next((process["device"] for process in used), ""),
        "peak_bytes": max((process["peak_bytes"] for process in used), default=0),
        "operators": sorted({name for process in used for name in process["operators"]}),
        "rows": list(rows.values()),
    }
