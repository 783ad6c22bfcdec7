"""PyTorch's profiler, completed by XLA's events of the device.

PyTorch's own profiler takes device events from plug-ins of C++ alone. So JAX's profiler runs for as
long as PyTorch's does, and its kernels join PyTorch's events afterwards: as kernels of the operator
that launched them, as rows of their own, and as threads in the exported file. Both write
nanoseconds of one clock.
"""

from __future__ import annotations

import functools
import json
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from torch_jax._private import jax_profiler, pytorch
from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.device import streams
from torch_jax.device.trace import events
from torch_jax.device.trace.events import Event

_DEVICE = f"{pytorch.DEVICE_TYPE} device"
_HOST = "XLA host"
_SPANS = ("cpu_op", "user_annotation")  # categories of the exported file that can launch programs
# Names of frames, with_stack=True, and beginnings of those of libraries.
_PYTHON = re.compile(r".*\.py\(\d+\): |<.*>$|nn\.Module: ").match
_LIBRARIES = ("torch/", "torch_jax/", "jax/", "<", "nn.Module: ")
_STANDARD = Path(sysconfig.get_path("stdlib"))
_sessions: dict[int, Any] = {}  # sessions under way, by the profile
_TRACE = "_torch_jax_trace"


def begin(profile: Any) -> None:
    """Trace the device too while a ``torch.autograd.profiler.profile`` runs, or warn why not."""
    vars(profile).pop(_TRACE, None)
    # record_function imports this when it is first used: within a profile with stacks, PyTorch 2.13
    # may keep the name of a frame whose text is gone, which is no UTF-8
    getattr(torch.autograd.profiler, "_maybe_cupti_monitor", lambda: None)()
    streams.synchronize()  # work still running was launched before
    try:
        _sessions[id(profile)] = jax_profiler.start()
    except RuntimeError as error:
        warnings.warn(f"this profile has no times of device 'jax': {error}", stacklevel=2)


def end(profile: Any) -> None:
    """End the trace, when the device has finished its work."""
    if (session := _sessions.pop(id(profile), None)) is None:
        return
    try:
        streams.synchronize()
    finally:
        setattr(profile, _TRACE, jax_profiler.stop(session))


def has_trace(profile: Any) -> bool:
    """Return whether a profile that has ended has a trace of the device."""
    return hasattr(profile, _TRACE)


def _read(profile: Any) -> list[Event]:
    trace = getattr(profile, _TRACE)
    if isinstance(trace, bytes):  # read at the first use, once
        trace = events.read(trace)
        setattr(profile, _TRACE, trace)
    return trace


def add_kernels(profile: Any, found: list[Any], start: int) -> list[Any]:
    """Return PyTorch's events and the device's kernels, of a profile that began at ``start`` ns."""
    kernels = [e for e in _read(profile) if e.is_kernel and not e.is_whole and e.end > start]
    host = [e for e in found if e.device_type == DeviceType.CPU and not e.is_async]
    launchers = _launchers(kernels, _spans(e for e in host if not _PYTHON(e.name)), start)
    frames = _launchers(kernels, _spans(e for e in host if _is_of_user(e.name)), start)
    number = max((event.id for event in found), default=0)
    for at, kernel in enumerate(kernels, start=1):
        if (launcher := launchers.get(id(kernel))) is not None:
            launcher.append_kernel(kernel.name, 0, (kernel.end - kernel.begin) / 1000)
        frame = kernel.frame or getattr(frames.get(id(kernel)), "name", "")
        event = FunctionEvent(
            id=number + at,
            name=kernel.name,
            trace_name=kernel.name,
            thread=0,
            start_us=(kernel.begin - start) / 1000,
            end_us=(kernel.end - start) / 1000,
            input_shapes=[],
            stack=[frame] if frame else [],
            use_device=pytorch.DEVICE_TYPE,
            device_type=DeviceType.PrivateUse1,
            device_index=0,
        )
        found.append(event)
    return sorted(found, key=lambda event: (event.time_range.start, -event.time_range.end))


def _launchers(kernels: list[Event], spans: list[tuple], start: int) -> dict[int, Any]:
    """Return, by a kernel's id, the innermost event of the host that called its program."""
    launched = [(e.launched, id(e)) for e in kernels if e.launched is not None]
    ordered = sorted(spans, key=lambda span: (-span[0], span[1]))
    around: list[tuple] = []
    found = {}
    for moment, kernel in sorted(launched):
        at = (moment - start) / 1000
        while ordered and ordered[-1][0] <= at:
            around.append(ordered.pop())
        while around and around[-1][1] < at:
            around.pop()
        if around:
            found[kernel] = around[-1][2]
    return found


def _spans(found: Iterable[Any]) -> list[tuple[float, float, Any]]:
    return [(e.time_range.start, e.time_range.end, e) for e in found]


@functools.lru_cache(ENTRIES_REMEMBERED)
def _is_of_user(name: str) -> bool:
    """Return whether an event is a frame of Python outside of the libraries at work here."""
    if not _PYTHON(name) or name.startswith(_LIBRARIES):
        return False
    return not (_STANDARD / name.partition("(")[0]).exists()


def add_to_file(profile: Any, path: str) -> None:
    """Add the device, and XLA's threads on the host, to an exported Chrome trace."""
    with open(path) as file:
        document = json.load(file)
    base = document.get("baseTimeNanoseconds", 0)
    document["traceEvents"] += _chrome_events(_read(profile), document["traceEvents"], base)
    with open(path, "w") as file:
        json.dump(document, file)


def _chrome_events(found: list[Event], host: list[dict[str, Any]], base: int) -> Iterator[Any]:
    threads: dict[tuple[str, str], int] = {}
    spans = [
        (one["ts"], one["ts"] + one.get("dur", 0), one)
        for one in host
        if one.get("ph") == "X" and one.get("cat") in _SPANS
    ]
    launchers = _launchers([event for event in found if event.is_kernel], spans, base)
    for at, event in enumerate(found):
        process = _DEVICE if event.is_kernel else _HOST
        thread = threads.setdefault((process, event.line), len(threads))
        place = {"pid": process, "tid": thread, "ts": (event.begin - base) / 1000}
        launcher = launchers.get(id(event))
        kinds = int, float, str, bool
        details = {n: v if isinstance(v, kinds) else str(v) for n, v in event.details.items()}
        if launcher is not None:
            details["launched by"] = launcher["name"]
            arrow = {"cat": "ac2g", "name": "ac2g", "id": f"jax-{at}"}
            yield arrow | {name: launcher[name] for name in ("pid", "tid", "ts")} | {"ph": "s"}
            yield arrow | place | {"ph": "f", "bp": "e"}
        yield place | {
            "ph": "X",
            "cat": "kernel" if event.is_kernel else "xla",
            "name": event.name,
            "dur": (event.end - event.begin) / 1000,
            "args": details,
        }
    for (process, line), thread in threads.items():
        named = {"ph": "M", "pid": process, "tid": thread}
        yield named | {"name": "process_name", "args": {"name": process}}
        yield named | {"name": "thread_name", "args": {"name": line}}
