"""The report on a script: its costs, and the lines worth changing, as text and as JSON.

Pure functions of the counts of :mod:`.costs`.
"""

from __future__ import annotations

import linecache
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch_jax.budgets import (
    LINES_WORTH_CHANGING,
    OPERATORS_WORTH_A_PROGRAM,
    SECONDS_WORTH_A_CHANGE,
    TIMES_OF_A_LOOP,
)
from torch_jax.core.compilations import Counts
from torch_jax.device.memory_report import readable

# Replacements for a line that waits for a value, by a pattern of its text.
_WAITS = (
    (r"\bprint\(|\blogg?(er|ing)?\b|write", "print every hundredth step, not each"),
    (
        r"\+=.*\.(item|tolist|cpu)\(|\bfloat\(",
        "add up tensors (total += loss.detach()), and look at the sum after the loop",
    ),
    (r"\.append\(", "append loss.detach(), and look at all of them after the loop"),
    (r"\bif\b|\bwhile\b|\bassert\b", "decide on the device: torch.where(condition, a, b)"),
    (r"\.(cpu|numpy|tolist)\(", "keep the tensors on the device until the loop is over"),
    (r"\.item\(", "keep the value a tensor, and call .item() after the loop"),
)


def summary(found: dict[str, Any], script: str, seconds: float, status: int) -> dict[str, Any]:
    """Return the report on a script, for JSON."""
    rows = found["rows"]
    fallbacks, waits, checks = (_of_kind(rows, one) for one in ("fallback", "to_host", "check"))
    names = sum((Counter(row["what"]) for row in fallbacks), Counter())
    return {
        "script": script,
        "status": status,
        "seconds": seconds,
        "device": found["device"],
        "processes": found["processes"],
        "peak_bytes": found["peak_bytes"],
        "operators": len(found["operators"]),
        **_programs(rows).by_name(),
        "cpu_fallbacks": dict(names.most_common()),
        "cpu_fallback_seconds": _sum(fallbacks, "seconds"),
        "waits": _sum(waits, "count"),
        "wait_seconds": _sum(waits, "seconds"),
        "checks": _sum(checks, "count"),
        "check_seconds": _sum(checks, "seconds"),
        "bytes_to_host": _sum(waits, "bytes"),
        "bytes_to_device": _sum(_of_kind(rows, "to_device"), "bytes"),
        "lines": lines_worth_changing(rows),
        "rows": rows,
    }


def _of_kind(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def _sum(rows: list[dict[str, Any]], name: str) -> Any:
    return sum(row[name] for row in rows)


def _programs(rows: list[dict[str, Any]]) -> Counts:
    return Counts(*(_sum(rows, name) for name in Counts._fields))


def lines_worth_changing(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines that cost most, each with its text, its cost, and a replacement.

    An entry is of one cause: its seconds are those of the costliest line and of the others, also
    listed, that need the same change. A line that waits now and then is left out: a program has to
    read its results. So is a line whose cost no other way of writing would change: a model that is
    made, a program that is compiled once.

    >>> row = {"kind": "to_host", "file": "a.py", "line": 3, "function": "train", "count": 500}
    >>> row |= {"visits": 0, "seconds": 1.5, "bytes": 2000, "what": {}, **Counts()._asdict()}
    >>> [line] = lines_worth_changing([row])
    >>> line["cost"], line["instead"]
    ('waited 500 times for a value', 'keep the value a tensor until the loop is over')
    """
    causes: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for row in sorted(rows, key=_seconds, reverse=True):
        if row["file"] and row["kind"] in _ADVICE:
            if (advice := _ADVICE[row["kind"]](row, _source(row))) is not None:
                causes.setdefault(advice[1], []).append((row, advice[0]))
    worth = [_line(instead, cases) for instead, cases in causes.items() if _is_worth(cases)]
    return sorted(worth, key=_seconds, reverse=True)[:LINES_WORTH_CHANGING]


def _is_worth(cases: list[tuple[dict[str, Any], str]]) -> bool:
    """Return whether a cause is reported: a CPU fallback always, others by their seconds."""
    rows = [row for row, _ in cases]
    return rows[0]["kind"] == "fallback" or _sum(rows, "seconds") >= SECONDS_WORTH_A_CHANGE


def _source(row: dict[str, Any]) -> str:
    return linecache.getline(row["file"], row["line"]).strip()


def _line(instead: str, cases: list[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    """Return the costliest line of a cause, its cost, and the other lines of the cause."""
    (first, cost), *others = cases
    return {
        **{name: first[name] for name in ("file", "line", "function")},
        "source": _source(first),
        "seconds": sum(row["seconds"] for row, _ in cases),
        "cost": cost,
        "instead": instead,
        "also": [f"{from_here(row['file'])}:{row['line']}" for row, _ in others],
    }


_seconds = operator.itemgetter("seconds")
_Advice = tuple[str, str] | None  # the cost of a line, and a replacement


def _of_waits(row: dict[str, Any], source: str) -> _Advice:
    if row["count"] < TIMES_OF_A_LOOP:
        return None
    found = [instead for pattern, instead in _WAITS if re.search(pattern, source)]
    instead = found[0] if found else "keep the value a tensor until the loop is over"
    return f"waited {row['count']:,} times for a value", instead


def _of_checks(row: dict[str, Any], source: str) -> _Advice:
    if row["count"] < TIMES_OF_A_LOOP:
        return None
    names = ", ".join(sorted(row["what"]))
    return (
        f"waited {row['count']:,} times to see that the values given to {names} are valid",
        "TORCH_JAX_CHECK_INDICES=never, where indices, labels and probabilities are known to be",
    )


def _of_fallbacks(row: dict[str, Any], source: str) -> _Advice:
    names = ", ".join(sorted(row["what"]))
    instead = (
        "no lowering to JAX: use another operator, or write one with torch_jax.register_op "
        f'("{min(row["what"], default="")}")'
    )
    return f"ran {names} on the CPU {row['count']:,} times, with copies", instead


def _of_compiles(row: dict[str, Any], source: str) -> _Advice:
    """Advise on calls with ever new shapes, and on several operators that could be one program.

    An operator has a namespace in its name, and a program that was recorded as a whole has none.
    """
    most, times = Counter(row["what"]).most_common(1)[0] if row["what"] else ("", 0)
    cost = str(_programs([row]))
    if min(times, row["visits"]) >= TIMES_OF_A_LOOP:
        return (
            f"{cost}; {times:,} times for other shapes or numbers of {most}",
            "pad to few sizes (drop_last=True, padding to multiples), or "
            "@torch_jax.jit(dynamic=...)",
        )
    if len([name for name in row["what"] if "::" in name]) < OPERATORS_WORTH_A_PROGRAM:
        return None
    return cost, "put the step into a function under @torch_jax.jit: one program"


_ADVICE: dict[str, Callable[[dict[str, Any], str], _Advice]] = {
    "compile": _of_compiles,
    "fallback": _of_fallbacks,
    "to_host": _of_waits,
    "check": _of_checks,
}


def text(data: dict[str, Any]) -> str:
    """Return a summary for people.

    >>> found = {"rows": [], "device": "", "processes": 0, "peak_bytes": 0, "operators": []}
    >>> print(text(summary(found, "train.py", 1.0, 0)))
    torch_jax: train.py ran for 1.0 s
      nothing ran on device jax: the script moved no tensor to "cuda"
    """
    return "\n".join(_lines_of(data))


def _lines_of(data: dict[str, Any]) -> Iterator[str]:
    ended = f", and ended with status {data['status']}" if data["status"] else ""
    yield f"torch_jax: {data['script']} ran for {data['seconds']:.1f} s{ended}"
    if not data["device"]:
        yield '  nothing ran on device jax: the script moved no tensor to "cuda"'
        return
    of = f", {data['processes']} processes" if data["processes"] > 1 else ""
    memory = f", {readable(data['peak_bytes'])} of memory" if data["peak_bytes"] else ""
    yield f"  on jax        {data['operators']} kinds of operators on {data['device']}{of}{memory}"
    if data["cpu_fallbacks"]:
        seconds = data["cpu_fallback_seconds"]
        yield f"  on the CPU    {len(data['cpu_fallbacks'])} operators in {seconds:.1f} s"
        for name, count in data["cpu_fallbacks"].items():
            yield f"                {count:6,} x {name}"
    else:
        yield "  on the CPU    no operator fell back"
    programs = _programs(data["rows"])
    share = 100 * programs.seconds / max(data["seconds"], 1e-9)
    yield f"  XLA           {programs} ({share:.0f} % of the time)"
    yield (
        f"  looked at     {data['waits']:,} values, waiting {data['wait_seconds']:.1f} s; "
        f"{readable(data['bytes_to_host'])} to the host, "
        f"{readable(data['bytes_to_device'])} to the device"
    )
    if data["checks"]:
        yield (
            f"  checked       {data['checks']:,} times that values are valid, waiting "
            f"{data['check_seconds']:.1f} s"
        )
    if data["lines"]:
        yield "The lines worth changing:"
    for line in data["lines"]:
        also = f"; also {', '.join(line['also'])}" if line["also"] else ""
        yield f"  {from_here(line['file'])}:{line['line']}, in {line['function']}{also}"
        yield f"      {line['source']}"
        yield f"    {line['seconds']:.2f} s: {line['cost']}"
        yield f"    instead: {line['instead']}"


def from_here(path: str) -> str:
    """Return a path relative to this folder, if it lies below."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
