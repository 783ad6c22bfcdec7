"""Makes the page of performance from ``performance.jsonl``: ``python docs/performance.py RESULTS``.

``make bench`` writes the results: a line for each ratio. They take the place of what
``performance.jsonl`` has of the same benchmarks. From that file come ``performance.md``, its
pictures, and the table of the README.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import pictures

ROOT = Path(__file__).parents[1]
PAGE = """\
# Performance

Ratios of times (or of bytes, where a title says so): below 1, the first contender needs less.
Contenders alternate in one process, in changing order, and a ratio is the median of the rounds'
ratios, so that a slow moment of the machine slows both; "spread" is half of the interquartile range
of the rounds, relative to the median. Settings are the defaults, unless the mode names one.
Contenders are called until they are in their steady state, and timed from there.

The mode says how torch_jax ran the calls that were timed: a call of [torch_jax.jit](jit.md) is
`recorded` where its Python runs, and `pure` where it is skipped (`pure=True`); `graph` is a program
of [torch.compile](compile.md), `lazy` and `fused` are recordings without a function, and `eager` is
one operator after the other. Of two modes, the second is that of the contender beside.

The GPT has 6 layers of width 384; the ResNet reads 32 images of 32x32, timm's models 8. Eagerly on
the CPU, a small operator costs 1 to 6 µs more than in PyTorch (`BENCH_ARGS="ops loops"`).

`make bench` measures (`BENCH_ARGS="ops jit"`: a part), and `make measured` makes this page from
[all results](performance.jsonl). Results of a busy machine are refused.
{measured}
Beside PyTorch's own eager mode on the same CPU:

![{short}](speed.svg)

![{alt}](performance.svg)
"""
MEASURED = """
Measured on {machine} ({device}, {threads} threads), torch {torch}, jax {jax}, {date}, with a load
of {load:g} at the beginning.
"""
BUSY = """\
The machine was busy when the benchmark "{benchmark}" ran. It has {cores} cores; the load was
{load:g} at the beginning, and at the end {load_after:g} tasks of other processes were ready to run.
Nothing is written: run `make bench` on a quiet machine."""
ALT = "Ratios of times; the line is at 1"
SHORT = "Time of torch_jax over time of PyTorch on the CPU; the line is at 1"
PYTORCH = "PyTorch eager"  # as benchmarks/speed.py names it
HEAD = """
| | beside | ratio | spread | wanted below | mode |
| --- | --- | ---: | ---: | ---: | --- |
"""
RECORDED = "recorded"  # the mode of `torch_jax.jit`
MOST = 8  # rows of the table of the README
BEGIN, END = "<!-- speed -->\n", "<!-- /speed -->\n"  # around the table of the README

Row = dict[str, Any]


def busy(rows: Iterable[Row]) -> str | None:
    """Return a complaint if the machine was busy when something was measured."""
    for row in rows:
        found = row["conditions"]
        if max(found["load"], found["load_after"]) > found["cores"]:
            return BUSY.format(**row, **found)
    return None


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """Return all rows, where benchmarks that ran again have the new ones in the old place."""
    again = {row["benchmark"] for row in new}
    known = dict.fromkeys(row["benchmark"] for row in (*old, *new))
    return [
        row
        for name in known
        for row in (new if name in again else old)
        if row["benchmark"] == name
    ]  # fmt: skip


def measured(rows: Iterable[Row]) -> list[str]:
    """Return what to say of the conditions that rows were measured under, each once."""
    return list(dict.fromkeys(MEASURED.format(**row["conditions"]) for row in rows))


def page(rows: list[Row]) -> str:
    """Return the text: a table for each title, with its conditions where they are not the same."""
    everywhere = measured(rows)
    is_same = len(everywhere) == 1
    text = PAGE.format(measured=everywhere[0] if is_same else "", alt=ALT, short=SHORT)
    for title, some in _by_title(rows):
        conditions = "" if is_same else "".join(measured(some))
        text += f"\n## {title}\n{conditions}{HEAD}{''.join(map(_row, some))}"
    return text


def _by_title(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    return [(title, list(some)) for title, some in groupby(rows, lambda row: row["title"])]


def _row(row: Row) -> str:
    spread = f"{row['spread']:.0%}" if "spread" in row else ""
    wanted = f"{row['wanted']:g}" if row["wanted"] else ""
    cells = (row["ours"], row["theirs"], f"{row['ratio']:.2f}", spread, wanted, row["mode"])
    return f"| {' | '.join(cells)} |\n"


def readme(text: str, rows: list[Row]) -> str:
    """Return the text of the README with a table of the slowest models between its marks."""
    speed = [row for row in rows if row["benchmark"] == "speed"]
    beside = {
        title: {(row["theirs"], row["mode"]): row["ratio"] for row in some}
        for title, some in _by_title(speed)
    }
    found = dict.fromkeys(pair for ratios in beside.values() for pair in ratios)
    columns = [pair for pair in found if pair[0] == PYTORCH]
    columns += [pair for pair in found if pair[0] != PYTORCH and pair[1] == RECORDED]
    heads = (f"{mode} / {theirs}" for theirs, mode in columns)
    lines = [f"| | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(columns)}"]
    fastest = sorted(beside, key=lambda title: next(iter(beside[title].values())))[:-MOST]
    for title in (title for title in beside if title not in fastest):
        ratios = (beside[title].get(pair) for pair in columns)
        cells = ("" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| {title} | {' | '.join(cells)} |")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    table = "\n".join([*lines, *measured(speed)])
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def picture(rows: list[Row]) -> str:
    """Return a bar for each ratio."""
    groups = {
        title: {f"{row['ours']} / {row['theirs']}": row["ratio"] for row in some}
        for title, some in _by_title(rows)
    }
    return pictures.ratios(groups, ALT)


def short_picture(rows: list[Row]) -> str:
    """Return a bar for each model: the time beside PyTorch's own, by the way of running it."""
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["theirs"] == PYTORCH:
            groups.setdefault(row["ours"], {})[row["title"]] = row["ratio"]
    return pictures.ratios(groups, SHORT, most=2.0)


def _rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main(results: Path, root: Path = ROOT) -> None:
    """Put the results into the file of all results, and write what is made of that."""
    kept, docs = root / "docs" / "performance.jsonl", root / "docs"
    new = _rows(results)
    complaint = busy(new)
    if complaint:
        sys.exit(complaint)
    rows = merged(_rows(kept), new)
    kept.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (docs / "performance.md").write_text(page(rows))
    (docs / "performance.svg").write_text(picture(rows))
    (docs / "speed.svg").write_text(short_picture(rows))
    (root / "README.md").write_text(readme((root / "README.md").read_text(), rows))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
