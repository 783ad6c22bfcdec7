"""``torch_xla.debug``: counts of programs, copies and values, and profiles by JAX's profiler.

TensorBoard and xprof read their files.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import jax

from torch_jax.core import waking
from torch_jax.observe import metrics as own

metrics_report = own.report


def short_metrics_report(
    counter_names: list[str] | None = None, metric_names: list[str] | None = None
) -> str:
    """Return the named counters and metrics, a line each; without names, the first lines."""
    if not counter_names and not metric_names:
        return "\n".join(own.report().splitlines()[:3])
    counted, wanted = own.metrics(), [*(counter_names or ()), *(metric_names or ())]
    return "\n".join(f"{name}: {counted[name]}" for name in wanted if name in counted)


def counter_names() -> list[str]:
    """Return the names of plain counts."""
    return [name for name, value in own.metrics().items() if isinstance(value, int | float)]


def counter_value(name: str) -> Any:
    """Return a number, or counts by place, of :func:`torch_jax.metrics`; None for other names."""
    return own.metrics().get(name)


metric_data = counter_value


def metric_names() -> list[str]:
    """Return the names of counts by place or operator."""
    counted = own.metrics().items()
    return [
        name for name, value in counted if name not in counter_names() and name != "explanations"
    ]


def executed_fallback_ops() -> list[str]:
    """Return the operators that ran on the CPU."""
    return list(own.metrics()["cpu_fallbacks"])


clear_all = clear_counters = clear_metrics = own.reset_metrics


StepTrace = jax.profiler.StepTraceAnnotation
Trace = jax.profiler.TraceAnnotation
stop_server = jax.profiler.stop_server
stop_trace = jax.profiler.stop_trace


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
