"""Timing of contenders side by side: they alternate in one process, so that noise hits all."""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks import modes
from torch_jax.memory import transfer

LEAST_ROUNDS = 5
SECONDS_UNTIL_THREADS_SLEEP = 0.04
ROWS: list[dict[str, Any]] = []  # the ratios that the benchmark under way has found


class Timed(NamedTuple):
    """Hold what was measured of a contender: a value for each round, and the mode."""

    values: list[float]
    mode: str = ""


Samples = dict[str, Timed]


def wait(tensor: torch.Tensor) -> None:
    """Wait for a tensor of the device; one that is only written down is computed."""
    transfer.value_of(tensor).block_until_ready()


def sample(
    contenders: Mapping[str, Callable[[], object]],
    calls: int,
    rounds: int,
    seconds: float = math.inf,
    warm_up: float = modes.SECONDS,
) -> Samples:
    """Seconds per call of each contender in each of ``rounds`` alternating blocks of ``calls``.

    Every contender settles first, for ``warm_up`` seconds: :func:`benchmarks.modes.settle`. Each
    round has its own order, so that none always comes after the same other, whose memory fills the
    caches. The first calls of a block are not timed: after PyTorch's last kernel OpenMP's threads
    spin for up to 20 ms, on cores that the next contender needs. After so many ``seconds`` no round
    begins, unless there were very few.
    """
    found = {name: modes.settle(call, warm_up) for name, call in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order, shuffle = list(contenders.items()), random.Random(0).shuffle
    end = time.perf_counter() + seconds
    for count in range(rounds):
        if count >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        shuffle(order)
        for name, function in order:
            end_of_others = time.perf_counter() + SECONDS_UNTIL_THREADS_SLEEP
            while time.perf_counter() < end_of_others:
                function()
            start = time.perf_counter()
            for _ in range(calls):
                function()
            times[name].append((time.perf_counter() - start) / calls)
    return {name: Timed(times[name], modes.after(found[name], contenders[name])) for name in times}


def first(call: Callable[[], object]) -> Timed:
    """Time the first call of a function; the mode is that of the next one."""
    start = time.perf_counter()
    call()
    return Timed([time.perf_counter() - start], modes.mode(call))


def together(runs: Iterable[Sequence[Any]]) -> Timed:
    """Put together what processes have measured of one contender: a :class:`Timed` of each."""
    values, found = zip(*runs, strict=True)
    return Timed([value for some in values for value in some], " or ".join(dict.fromkeys(found)))


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


def note(
    title: str, ours: str, theirs: str, ratio: float, wanted: float | None, mode: str, **rest: float
) -> None:
    """Keep a ratio for the page."""
    row = {"title": title, "ours": ours, "theirs": theirs, "ratio": ratio, "wanted": wanted}
    ROWS.append({**row, "mode": mode, **rest})


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
    print(f"  {'':28} {'median':>12} {'best':>12} {'spread':>7} {'ratio':>7} {'target':>7}  mode")
    (first, ours), *_ = samples.items()
    for index, (name, theirs) in enumerate(samples.items()):
        median, best = statistics.median(theirs.values), min(theirs.values)
        times = f"{median * scale:9.1f} {unit} {best * scale:9.1f} {unit}"
        ratios = [a / b for a, b in zip(ours.values, theirs.values, strict=True)]
        ratio = f"{statistics.median(ratios):6.2f}x" if index else ""
        if index:
            found = " / ".join(dict.fromkeys(filter(None, (ours.mode, theirs.mode))))
            result, noise = statistics.median(ratios), spread(ratios)
            note(title, first, name, result, targets.get(name), found, spread=noise)
        target = f"{targets[name]:6.2f}x" if name in targets else ""
        print(
            f"  {name:28} {times:>25} {spread(theirs.values):6.0%}  {ratio:>7} {target:>7}  "
            f"{theirs.mode}",
            flush=True,
        )
