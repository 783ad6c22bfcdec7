"""What recorded execution has done so far: ``torch_jax.metrics()``, and ``report()`` for people."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch_jax.core.traffic import TRAFFIC
from torch_jax.dispatch.cpu import FALLBACKS
from torch_jax.recorded.metrics import COUNTS

_before: Counter[str] = Counter()  # falls to the CPU before the counters were reset


def metrics() -> dict[str, Any]:
    """What lazy mode, and functions under ``torch_jax.jit`` that ran recorded, have done so far.

    Returns:
      ``operators``: recorded and run. ``graphs``: recordings that were run, ``hits`` of which
      found a program, for ``compiles`` of which one was compiled. ``compile_seconds``, and
      ``wait_seconds``: how long values were waited for. ``bytes_to_device``, ``bytes_to_host``:
      copied, in eager mode too. ``cpu_fallbacks``: how often operators ran on the CPU, by name.
      ``early_syncs``: how often a recording was run because Python looked at a value, by the line
      of the user's code. ``explanations``: why programs were compiled, the latest 256.

    >>> sorted(metrics())[:4]
    ['bytes_to_device', 'bytes_to_host', 'compile_seconds', 'compiles']
    """
    to_device, to_host, seconds = TRAFFIC.sums()
    return {
        "operators": COUNTS.operators,
        "graphs": COUNTS.graphs,
        "compiles": COUNTS.compiles,
        "hits": max(COUNTS.graphs - COUNTS.compiles, 0),
        "compile_seconds": COUNTS.compile_seconds,
        "wait_seconds": seconds,
        "bytes_to_device": to_device,
        "bytes_to_host": to_host,
        "cpu_fallbacks": dict(FALLBACKS - _before),
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
    _before.clear()
    _before.update(FALLBACKS)


def report() -> str:
    """What :func:`metrics` counts, as text.

    >>> reset_metrics()
    >>> print(report())
    0 operators recorded, 0 graphs run: 0 compiled in 0.00 s, 0 found
    waited 0.00 s for values; 0 B to the device, 0 B to the host
    """
    now = metrics()
    lines = [
        f"{now['operators']:,} operators recorded, {now['graphs']:,} graphs run: "
        f"{now['compiles']:,} compiled in {now['compile_seconds']:.2f} s, {now['hits']:,} found",
        f"waited {now['wait_seconds']:.2f} s for values; "
        f"{_bytes(now['bytes_to_device'])} to the device, {_bytes(now['bytes_to_host'])} "
        "to the host",
        *_counted("values looked at before they were computed:", now["early_syncs"]),
        *_counted("operators that ran on the CPU:", now["cpu_fallbacks"]),
    ]
    if now["explanations"]:
        lines += ["compiled:", *(f"  {one}" for one in now["explanations"])]
    return "\n".join(lines)


def _counted(title: str, counts: dict[str, int]) -> list[str]:
    """Lines of a table, the most frequent first."""
    if not counts:
        return []
    rows = sorted(counts.items(), key=lambda row: -row[1])
    return [title, *(f"  {count:6,} x {what}" for what, count in rows)]


def _bytes(count: int) -> str:
    """A number of bytes as people write it.

    >>> _bytes(500), _bytes(3 << 19)
    ('500 B', '1.5 MiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {'KMGT'[power - 1]}iB"
