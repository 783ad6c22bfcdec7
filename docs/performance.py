"""Makes ``performance.md`` and its pictures from a run: ``python docs/performance.py RESULTS``.

``make bench`` writes the results: a line about the run, then one for each ratio.
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pictures

HERE = Path(__file__).parent
PAGE = """\
# Performance

Ratios of times (or of bytes, where a title says so): below 1, what is named first needs less.
Contenders alternate in one process, in changing order, and a ratio is the median of the rounds'
ratios, so that what slows the machine slows both; "spread" is half of the interquartile range of
the rounds, relative to the median. `make bench` measures (`BENCH_ARGS="ops jit"`: a part), and
`make measured` makes this page of it.

Measured on {device}, {cores} cores, with {threads} threads, torch {torch}, jax {jax}, {date}.
{busy}

Beside PyTorch's own eager mode on the same CPU:

![{short}](speed.svg)

![{alt}](performance.svg)
"""
IDLE = "The machine did nothing else."
BUSY = """\
**The machine was busy**: {load} processes waited for its {cores} cores when the run began. Single
figures may be far off; run `make bench` on a quiet machine before you rely on one."""
ALT = "Ratios of times; the line is at 1"
SHORT = "Time of torch_jax over time of PyTorch on the CPU; the line is at 1"
PYTORCH = "PyTorch eager"  # as benchmarks/speed.py names it
HEAD = (
    "\n## {}\n\n| | beside | ratio | spread | wanted below |\n| --- | --- | ---: | ---: | ---: |\n"
)


def page(conditions: dict[str, Any], ratios: list[dict[str, Any]]) -> str:
    """The text: a table for each title."""
    busy = BUSY.format(**conditions) if conditions["load"] > 0.5 else IDLE
    tables = (
        HEAD.format(title) + "".join(map(_row, rows))
        for title, rows in groupby(ratios, lambda ratio: ratio["title"])
    )
    return PAGE.format(**conditions, busy=busy, alt=ALT, short=SHORT) + "".join(tables)


def _row(ratio: dict[str, Any]) -> str:
    spread = f"{ratio['spread']:.0%}" if "spread" in ratio else ""
    wanted = f"{ratio['wanted']:g}" if ratio["wanted"] else ""
    return f"| {ratio['ours']} | {ratio['theirs']} | {ratio['ratio']:.2f} | {spread} | {wanted} |\n"


def picture(ratios: list[dict[str, Any]]) -> str:
    """A bar for each ratio."""
    groups = {
        title: {f"{one['ours']} / {one['theirs']}": one["ratio"] for one in rows}
        for title, rows in groupby(ratios, lambda ratio: ratio["title"])
    }
    return pictures.ratios(groups, ALT)


def short_picture(ratios: list[dict[str, Any]]) -> str:
    """A bar for each model: the time beside PyTorch's own, by the way of running it."""
    groups: dict[str, dict[str, float]] = {}
    for one in ratios:
        if one["theirs"] == PYTORCH:
            groups.setdefault(one["ours"], {})[one["title"]] = one["ratio"]
    return pictures.ratios(groups, SHORT, most=2.0)


if __name__ == "__main__":
    conditions, *ratios = map(json.loads, Path(sys.argv[1]).read_text().splitlines())
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else HERE
    (folder / "performance.md").write_text(page(conditions, ratios))
    (folder / "performance.svg").write_text(picture(ratios))
    (folder / "speed.svg").write_text(short_picture(ratios))
