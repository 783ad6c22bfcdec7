"""What the demo shows: progress while it works, the final table and the training curves."""

import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], total: int, label: str) -> Iterator[T]:
    """Yield the items, showing how many are done and how fast.

    A terminal gets one line that is written over; anything else gets about five plain lines.
    """
    live = sys.stdout.isatty()
    every = 1 if live else max(1, math.ceil(total / 5))
    start = time.perf_counter()
    for done, item in enumerate(items, 1):
        yield item
        if done % every and done != total:
            continue
        rate = done / (time.perf_counter() - start)
        line = f"  {label}: {done}/{total} ({rate:.1f}/s)"
        print(f"\r{line}" if live else line, end="" if live else "\n", flush=True)
    if live:
        print()


@dataclass
class Timing:
    """Seconds of each step, parted into those that meet a new shape and the steady rest."""

    first: list[float] = field(default_factory=list)
    steady: list[float] = field(default_factory=list)

    @property
    def compile(self) -> float:
        """Seconds spent in first steps, where XLA compiles."""
        return sum(self.first)

    @property
    def step_ms(self) -> float:
        """Median milliseconds of a steady step."""
        return 1e3 * statistics.median(self.steady) if self.steady else math.nan


@dataclass
class Run:
    """What one training run leaves: the loss and time of each step, and the final accuracy."""

    losses: list[float] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    accuracy: float = math.nan


@dataclass
class Row:
    """One task's line of the final table; ``timings`` are by way of running, CPU PyTorch first."""

    task: str
    quality: str
    difference: str
    timings: dict[str, Timing]
    failures: list[str]


def table(rows: list[Row]) -> str:
    """The rows as an aligned text table, with a column for each way of running."""
    ways = list(dict.fromkeys(way for row in rows for way in row.timings))
    head = ("task", "quality", "max diff", *(f"{way} ms/step" for way in ways))
    head += (*(f"{way} first s" for way in ways), "ok")
    lines = [head, *(_cells(row, ways) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(row: Row, ways: list[str]) -> tuple[str, ...]:
    cpu = row.timings[ways[0]]
    steps, firsts = [f"{cpu.step_ms:.1f}"], [f"{cpu.compile:.2f}"]
    for way in ways[1:]:
        timing = row.timings.get(way)
        steps.append(
            f"{timing.step_ms:.1f} ({timing.step_ms / cpu.step_ms:.2f}x)" if timing else ""
        )
        firsts.append(f"{timing.compile:.2f}" if timing else "")
    ok = "no" if row.failures else "yes"
    return (row.task, row.quality, row.difference, *steps, *firsts, ok)


# A wide pale line lies under the narrow ones, so that equal curves are all seen.
_STYLES = (
    {"color": "tab:blue", "alpha": 0.4, "linewidth": 4},
    {"color": "tab:red", "linewidth": 1},
    {"color": "black", "linewidth": 1, "linestyle": ":"},
)


def plot(tasks: dict[str, dict[str, Run]], path: Path) -> None:
    """Write each task's loss curves by way of running, their distances, and the time of a step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(
        3, len(tasks), figsize=(5 * len(tasks), 8), squeeze=False, height_ratios=[3, 2, 1.2]
    )
    for (task, runs), (losses, distances, times) in zip(tasks.items(), axes.T, strict=True):
        first = next(iter(runs))
        for (way, run), style in zip(runs.items(), _STYLES, strict=False):
            losses.plot(run.losses, label=way, **style)
            if way == first:
                continue
            # Equal losses have no place on a log axis: they are drawn at float32's rounding unit.
            pairs = zip(run.losses, runs[first].losses, strict=True)
            distances.plot([max(abs(a - b), 6e-8) for a, b in pairs], label=way, **style)
        losses.set(title=task, ylabel="loss", yscale="log")
        losses.legend()
        distances.set(xlabel="step", ylabel=f"|loss - {first}'s|", yscale="log")
        distances.sharex(losses)
        steps = {way: run.timing.step_ms for way, run in runs.items()}
        colors = [style["color"] for style in _STYLES]
        bars = times.barh(list(steps), list(steps.values()), color=colors, alpha=0.6)
        times.bar_label(bars, [f"{value:.0f} ms" for value in steps.values()], padding=3)
        times.set(xlabel="median step [ms]")
        times.margins(x=0.3)
        times.invert_yaxis()
    fig.tight_layout()
    fig.savefig(path, dpi=120)
    plt.close(fig)
