"""Timing of contenders side by side: they alternate in one process, so that noise hits all."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_jax.memory import transfer

Samples = dict[str, list[float]]


def wait(tensor: torch.Tensor) -> None:
    """Wait for a tensor of the device; one that is only written down is computed."""
    transfer.value_of(tensor).block_until_ready()


def sample(contenders: Mapping[str, Callable[[], object]], calls: int, rounds: int) -> Samples:
    """Seconds per call of each contender in each of ``rounds`` alternating blocks of ``calls``.

    Every contender is called a few times first, so that nothing is compiled while it is timed. Each
    round has its own order, so that none always comes after the same other, whose threads may
    still spin and whose memory fills the caches.
    """
    for function in contenders.values():
        for _ in range(3):
            function()
    samples: Samples = {name: [] for name in contenders}
    order, shuffle = list(contenders.items()), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name, function in order:
            start = time.perf_counter()
            for _ in range(calls):
                function()
            samples[name].append((time.perf_counter() - start) / calls)
    return samples


def alternate(
    contenders: Mapping[str, Callable[[], object]], calls: int, rounds: int
) -> dict[str, float]:
    """Median seconds per call of each contender: see :func:`sample`."""
    samples = sample(contenders, calls, rounds)
    return {name: statistics.median(times) for name, times in samples.items()}


def in_fresh_process(module: str, *arguments: str, **environment: str) -> Any:
    """What ``python -m module arguments`` prints in its last line, as JSON."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def spread(values: Sequence[float]) -> float:
    """How noisy the values are: half of their interquartile range, relative to their median.

    >>> spread([0.9, 1.0, 1.0, 1.0, 1.1])
    0.05
    """
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return round((high - low) / 2 / middle, 6)


def note(line: dict[str, object]) -> None:
    """Add a line of JSON to the file ``BENCH_RESULTS``, if there is to be one."""
    path = os.environ.get("BENCH_RESULTS")
    if path:
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")


def table(title: str, rows: list[tuple[str, float, float, float]], unit: str) -> None:
    """Print rows of (what, ours, theirs, highest ratio wanted), times in ``unit`` already."""
    print(f"\n{title}")
    print(f"  {'':24} {'torch_jax':>12} {'bare JAX':>12} {'ratio':>7} {'target':>7}")
    for what, ours, theirs, target in rows:
        ratio = ours / theirs
        times = f"{ours:9.2f} {unit} {theirs:9.2f} {unit}"
        note({"title": title, "ours": what, "theirs": "bare JAX", "ratio": ratio, "wanted": target})
        print(f"  {what:24} {times:>25} {ratio:6.2f}x {target:6.2f}x")


def compare(
    title: str,
    samples: Samples,
    targets: Mapping[str, float],
    unit: str = "ms",
    scale: float = 1e3,
) -> None:
    """Print times, and the ratio of the first contender to each other, beside the one wanted.

    A ratio is the median of the rounds' ratios: what slows the machine for a while slows both.
    """
    print(f"\n{title}")
    print(f"  {'':28} {'median':>12} {'best':>12} {'spread':>7} {'ratio':>7} {'target':>7}")
    (first, ours), *_ = samples.items()
    for index, (name, values) in enumerate(samples.items()):
        median, best = statistics.median(values), min(values)
        times = f"{median * scale:9.1f} {unit} {best * scale:9.1f} {unit}"
        ratios = [a / b for a, b in zip(ours, values, strict=True)]
        ratio = f"{statistics.median(ratios):6.2f}x" if index else ""
        if index:
            result = {"ours": first, "theirs": name, "ratio": statistics.median(ratios)}
            wanted, noise = targets.get(name), spread(ratios)
            note({"title": title, **result, "wanted": wanted, "spread": noise})
        target = f"{targets[name]:6.2f}x" if name in targets else ""
        print(f"  {name:28} {times:>25} {spread(values):6.0%}  {ratio:>7} {target:>7}", flush=True)
