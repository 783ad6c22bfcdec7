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
class Row:
    """One task's line of the final table."""

    task: str
    quality: str
    difference: str
    cpu: Timing
    device: Timing
    failures: list[str]


def table(rows: list[Row], device: str) -> str:
    """The rows as an aligned text table."""
    head: tuple[str, ...] = ("task", "quality", "max diff")
    head += ("CPU ms/step", f"{device} ms/step", f"{device}/CPU")
    head += ("CPU first s", f"{device} first s", "ok")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    ratio = row.device.step_ms / row.cpu.step_ms
    return (
        row.task,
        row.quality,
        row.difference,
        f"{row.cpu.step_ms:.1f}",
        f"{row.device.step_ms:.1f}",
        f"{ratio:.2f}x",
        f"{row.cpu.compile:.2f}",
        f"{row.device.compile:.2f}",
        "no" if row.failures else "yes",
    )


def plot(curves: dict[str, tuple[list[float], list[float]]], device: str, path: Path) -> None:
    """Write the loss curves of each task, (CPU, device), and how far apart they are."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(
        2,
        len(curves),
        figsize=(5 * len(curves), 6),
        sharex="col",
        squeeze=False,
        height_ratios=[2, 1],
    )
    for (task, (cpu, other)), (top, bottom) in zip(curves.items(), axes.T, strict=True):
        top.plot(cpu, color="tab:blue", alpha=0.4, linewidth=4, label="CPU PyTorch")
        top.plot(other, color="tab:red", linewidth=1, label=device)
        top.set(title=task, ylabel="loss", yscale="log")
        top.legend()
        # Equal losses have no place on a log axis: they are drawn at float32's rounding unit.
        apart = [max(abs(a - b), 6e-8) for a, b in zip(cpu, other, strict=True)]
        bottom.plot(apart, color="black", linewidth=1)
        bottom.set(xlabel="step", ylabel="|difference|", yscale="log")
    fig.tight_layout()
    fig.savefig(path, dpi=120)
    plt.close(fig)
