"""``torch_xla.debug.metrics``: counts of recorded, compiled and copied programs and values."""

from __future__ import annotations

from typing import Any

from torch_jax.observe import metrics as own

_TEXT = "explanations"


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
    return [name for name, value in counted if name not in counter_names() and name != _TEXT]


def executed_fallback_ops() -> list[str]:
    """Return the operators that ran on the CPU."""
    return list(own.metrics()["cpu_fallbacks"])


clear_all = clear_counters = clear_metrics = own.reset_metrics
