"""Makes ``conformance.md`` and its picture from a run: ``python docs/conformance.py RESULTS``.

``make conformance`` writes the results: a line about the run, then one for each case.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pictures

HERE = Path(__file__).parent
EXECUTORS = {
    "eager": "one operator at a time: values by dtype, in-place, `out=`, views, gradients",
    "recorded": "in [lazy mode](jit.md): values, in-place and gradients, in one program",
    "interpreted": "as an fx graph, by `JaxInterpreter`",
    "compiled": "by `torch.compile(fullgraph=True)`, where PyTorch makes one graph of it",
    "vmap": "under `torch.vmap`, over two examples; random numbers count as failures",
    "jax derivatives": "by `jax.vjp` of the operators, at kinks and ties, too: PyTorch's gradients",
}
EAGER = ("forward", "in-place", "out=", "views", "backward", "gradgrad")
PAGE = """\
# Conformance

PyTorch tests its own devices with a database of operators: {entries} entries, each with samples of
its arguments. `make conformance` runs them on device `jax` and on the CPU and compares values,
dtypes, strides, gradients, aliasing and errors. What does not pass is
[one list](../tests/conformance/gaps.py), with reasons; a case that fails and is not on it fails the
run.

This page is made by `make measured` from the results of one run: torch {torch}, jax {jax} on
{device}, {date}, {asked}.{part}

![Share of entries that pass in all their cases, by family and executor](conformance.svg)

## By executor

Entries of which every case passes, of those that were asked.

| | pass | of | % | what is asked |
| --- | ---: | ---: | ---: | --- |
{executors}
## By question

Operators eagerly, modules and optimizers of `torch.nn` and `torch.optim`.

| | cases that pass | of | % | entries that pass | of | % |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
{questions}
## What does not pass

Entries with a case that fails, by executor.

| | entries |
| --- | --- |
{failing}"""
PART = """ **That was
a part of a run**, which asked {asked} entries eagerly: `make conformance measured` makes the page
of a whole one."""

Cases = Mapping[str, list[bool]]  # of each entry, which cases pass


def family(entry: str) -> str:
    """The module of PyTorch that an entry is of: ``torch.linalg`` of ``linalg.svd``."""
    names = ("nn.functional", "linalg", "fft", "special", "signal.windows", "masked", "sparse")
    return next((f"torch.{name}" for name in names if entry.startswith(f"{name}.")), "torch")


def executor(row: str) -> str | None:
    """What ran the cases of a row; None for those that are not about one operator."""
    return "eager" if row.startswith(EAGER) else row if row in EXECUTORS else None


def grouped(results: Iterable[list[Any]]) -> tuple[dict[str, Cases], dict[str, Cases]]:
    """The cases of each row, and those of each executor."""
    rows: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    executors: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    for row, entry, _, passed in results:
        rows[row][entry].append(passed)
        if executor(row):
            executors[executor(row)][entry].append(passed)
    return rows, executors


def whole(cases: Cases) -> tuple[int, int]:
    """How many entries pass in all their cases, of how many."""
    return sum(map(all, cases.values())), len(cases)


def picture(executors: Mapping[str, Cases]) -> str:
    """The share of entries that pass, by family and executor."""
    families = sorted({family(entry) for cases in executors.values() for entry in cases})
    rows = {
        name: {
            column: whole({entry: of for entry, of in cases.items() if family(entry) == name})
            for column, cases in executors.items()
        }
        for name in families
    }
    columns = [name for name in EXECUTORS if name in executors]
    return pictures.shares(rows, columns, "Entries that pass, by family and executor")


def page(conditions: Mapping[str, Any], results: Iterable[list[Any]]) -> tuple[str, str]:
    """The page, and its picture."""
    rows, executors = grouped(results)
    weekly = "the dtypes of one week" if conditions["week"] else "all dtypes"
    samples = conditions["samples"]
    asked = f"{samples or 'all'} sample{'s' * (samples != 1)} of each entry and dtype, {weekly}"
    eager = executors.get("eager", {})
    listed = {name: executors[name] for name in EXECUTORS if name in executors}
    text = PAGE.format(
        **conditions,
        asked=asked,
        part="" if len(eager) > 0.9 * conditions["entries"] else PART.format(asked=len(eager)),
        executors="".join(
            f"| {name} | {_share(*whole(cases))} | {EXECUTORS[name]} |\n"
            for name, cases in listed.items()
        ),
        questions="".join(
            f"| {row} | {_share(*_cases(cases))} | {_share(*whole(cases))} |\n"
            for row, cases in sorted(rows.items())
            if row not in EXECUTORS
        ),
        failing="".join(f"| {name} | {_failing(cases)} |\n" for name, cases in listed.items()),
    )
    return text, picture(executors)


def _cases(cases: Cases) -> tuple[int, int]:
    return sum(map(sum, cases.values())), sum(map(len, cases.values()))


def _share(passed: int, cases: int) -> str:
    return f"{passed:,} | {cases:,} | {100 * passed / cases:.1f}"


def _failing(cases: Cases) -> str:
    return ", ".join(f"`{entry}`" for entry, of in sorted(cases.items()) if not all(of)) or "none"


if __name__ == "__main__":
    first, *rest = map(json.loads, Path(sys.argv[1]).read_text().splitlines())
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else HERE
    text, drawn = page(first, rest)
    (folder / "conformance.md").write_text(text)
    (folder / "conformance.svg").write_text(drawn)
