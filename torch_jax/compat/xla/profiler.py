"""``torch_xla.debug.profiler``: JAX's profiler, whose files TensorBoard and xprof read."""

from __future__ import annotations

import threading
import time
from typing import Any

import jax

from torch_jax.core import waking

Trace = jax.profiler.TraceAnnotation
stop_server = jax.profiler.stop_server
stop_trace = jax.profiler.stop_trace


class StepTrace(jax.profiler.StepTraceAnnotation):
    """A block that is a step in the profile."""

    def __init__(self, name: str, step_num: int = 0, **kwargs: Any):
        super().__init__(name, step_num=step_num, **kwargs)


def start_server(port: int, only_on_master: bool = True) -> Any:
    """Serve profiles to TensorBoard, for as long as the result is held."""
    waking.wake()
    return jax.profiler.start_server(port)


def start_trace(log_dir: str) -> None:
    """Begin a profile in a folder."""
    waking.wake()
    jax.profiler.start_trace(log_dir)


def trace(
    service_addr: str | None = None,
    logdir: str | None = None,
    duration_ms: int = 1000,
    **kwargs: Any,
) -> None:
    """Write a profile of some time, of this process, to a folder."""
    if logdir is None:
        raise ValueError("a profile needs a folder: trace(service_addr, logdir)")
    start_trace(logdir)
    time.sleep(duration_ms / 1000)
    stop_trace()


def trace_detached(*args: Any, **kwargs: Any) -> threading.Thread:
    """Write such a profile on a thread, beside the program."""
    thread = threading.Thread(target=trace, args=args, kwargs=kwargs, name="profile")
    thread.start()
    return thread
