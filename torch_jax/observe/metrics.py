"""Counts so far: ``torch_jax.metrics()``, and ``report()`` for people."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch_jax.core import compilations
from torch_jax.core.compilations import NOTHING
from torch_jax.core.costs import TRAFFIC
from torch_jax.device.memory_report import readable
from torch_jax.dispatch.cpu import FALLBACKS
from torch_jax.eager import bound
from torch_jax.recorded.metrics import COUNTS


class _Before:
    """The counts at the time of the last reset."""

    calls = 0
    programs = NOTHING
    fallbacks: Counter[str] = Counter()


def metrics() -> dict[str, Any]:
    """Return counts so far, in all modes and on all threads, and those of recordings.

    Programs of a user's own ``jax.jit`` are not counted.

    Returns:
      ``operators``: calls of operators that compute – not of views –, run at once, recorded, or
      traced into a program. ``recorded``: those of recordings that were run.
      ``graphs``: recordings that were run, ``hits`` of which found a program.
      ``compiles`` and ``compile_seconds``: programs that XLA compiled, for operators, recordings
      and whole functions. ``loaded`` and ``load_seconds``: those that were on disk. ``shared``:
      new calls that needed neither, since an executable of this process served them.
      ``wait_seconds``: time spent waiting for values. ``bytes_to_device``, ``bytes_to_host``:
      copied. ``cpu_fallbacks``: how often operators ran on the CPU, by name.
      ``early_syncs``: how often a recording was run because Python read a value, by the line
      of the user's code. ``explanations``: why programs of recordings were made, the latest 256.

    >>> sorted(metrics())[:4]
    ['bytes_to_device', 'bytes_to_host', 'compile_seconds', 'compiles']
    """
    to_device, to_host, seconds = TRAFFIC.sums()
    return {
        "operators": max(bound.calls() - _Before.calls, 0),
        "recorded": COUNTS.counted["operators"],
        "graphs": COUNTS.counted["graphs"],
        "hits": COUNTS.counted["hits"],
        **compilations.own().minus(_Before.programs).by_name(),
        "wait_seconds": seconds,
        "bytes_to_device": to_device,
        "bytes_to_host": to_host,
        "cpu_fallbacks": dict(FALLBACKS - _Before.fallbacks),
        "early_syncs": dict(COUNTS.early),
        "explanations": list(COUNTS.explanations),
    }


def reset_metrics() -> None:
    """Let :func:`metrics` and :func:`report` count from here on.

    >>> reset_metrics()
    >>> metrics()["graphs"]
    0
    """
    COUNTS.clear()
    TRAFFIC.clear()
    _Before.calls, _Before.programs = bound.calls(), compilations.own()
    _Before.fallbacks = FALLBACKS.copy()


def report() -> str:
    """Return the counts of :func:`metrics` as text.

    >>> reset_metrics()
    >>> print(report())
    0 operators, 0 of them recorded; 0 graphs run, 0 of them found
    compiled 0 programs in 0.00 s
    waited 0.00 s for values; 0 B to the device, 0 B to the host
    """
    now = metrics()
    lines = [
        f"{now['operators']:,} operators, {now['recorded']:,} of them recorded; "
        f"{now['graphs']:,} graphs run, {now['hits']:,} of them found",
        str(compilations.own().minus(_Before.programs)),
        f"waited {now['wait_seconds']:.2f} s for values; "
        f"{readable(now['bytes_to_device'])} to the device, {readable(now['bytes_to_host'])} "
        "to the host",
        *_counted("values looked at before they were computed:", now["early_syncs"]),
        *_counted("operators that ran on the CPU:", now["cpu_fallbacks"]),
    ]
    if now["explanations"]:
        lines += ["graphs compiled:", *(f"  {one}" for one in now["explanations"])]
    return "\n".join(lines)


def _counted(title: str, counts: dict[str, int]) -> list[str]:
    """Return lines of a table, the most frequent first."""
    rows = [f"  {count:6,} x {what}" for what, count in Counter(counts).most_common()]
    return [title, *rows] if rows else []
