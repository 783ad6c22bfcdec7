"""Timing of contenders side by side: they alternate in one process, so that noise hits all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def alternate(
    contenders: dict[str, Callable[[], object]], calls: int, rounds: int
) -> dict[str, float]:
    """Median seconds per call of each contender, over ``rounds`` alternating blocks of ``calls``.

    Every contender is called a few times first, so that nothing is compiled while it is timed.
    """
    for function in contenders.values():
        for _ in range(3):
            function()
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            start = time.perf_counter()
            for _ in range(calls):
                function()
            samples[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(times) for name, times in samples.items()}


def table(title: str, rows: list[tuple[str, float, float, float]], unit: str) -> None:
    """Print rows of (what, ours, theirs, highest ratio wanted), times in ``unit`` already."""
    print(f"\n{title}")
    print(f"  {'':24} {'torch_jax':>12} {'bare JAX':>12} {'ratio':>7} {'target':>7}")
    for what, ours, theirs, target in rows:
        ratio = ours / theirs
        times = f"{ours:9.2f} {unit} {theirs:9.2f} {unit}"
        print(f"  {what:24} {times:>25} {ratio:6.2f}x {target:6.2f}x")
