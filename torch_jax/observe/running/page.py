"""The report on a script: what ran where, and the lines worth changing, as text and as JSON.

Pure functions of what :mod:`.costs` has counted.
"""

from __future__ import annotations

import linecache
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

# What a line that waits for a value may do instead, by what stands in it.
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
    """What is told of a script, as JSON has it."""
    rows = found["rows"]
    of_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in _KINDS}
    fallbacks, programs = _what(of_kind["fallback"]), _programs(rows)
    return {
        "script": script,
        "status": status,
        "seconds": seconds,
        "device": found["device"],
        "processes": found["processes"],
        "peak_bytes": found["peak_bytes"],
        "operators": len(found["operators"]),
        "compiles": programs.compiled,
        "compile_seconds": programs.compile_seconds,
        "loaded": programs.loaded,
        "load_seconds": programs.load_seconds,
        "shared": programs.shared,
        "cpu_fallbacks": dict(fallbacks.most_common()),
        "cpu_fallback_seconds": _sum(of_kind["fallback"], "seconds"),
        "waits": _sum(of_kind["to_host"], "count"),
        "wait_seconds": _sum(of_kind["to_host"], "seconds"),
        "checks": _sum(of_kind["check"], "count"),
        "check_seconds": _sum(of_kind["check"], "seconds"),
        "bytes_to_host": _sum(of_kind["to_host"], "bytes"),
        "bytes_to_device": _sum(of_kind["to_device"], "bytes"),
        "lines": lines_worth_changing(rows),
        "rows": rows,
    }


_KINDS = ("compile", "to_host", "check", "to_device", "fallback")


def _sum(rows: list[dict[str, Any]], name: str) -> Any:
    return sum(row[name] for row in rows)


def _programs(rows: list[dict[str, Any]]) -> Counts:
    return Counts(*(_sum(rows, name) for name in Counts._fields))


def _what(rows: list[dict[str, Any]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found.update(row["what"])
    return found


def lines_worth_changing(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that cost most, each with its text, what it cost, and what to write instead.

    An entry is of one cause: its seconds are those of the dearest line and of the others, ``also``,
    that are to be changed in the same way. A line that waits now and then is left out: somebody has
    to look at the results. So is one of which nothing was counted that another way of writing would
    change: a model that is made, a program that is compiled once.

    >>> row = {"kind": "to_host", "file": "a.py", "line": 3, "function": "train", "count": 500}
    >>> row |= {"visits": 0, "seconds": 1.5, "bytes": 2000, "what": {}, **Counts()._asdict()}
    >>> [line] = lines_worth_changing([row])
    >>> line["cost"], line["instead"]
    ('waited 500 times for a value', 'keep the value a tensor until the loop is over')
    """
    causes: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for row in sorted(rows, key=_seconds, reverse=True):
        source = linecache.getline(row["file"], row["line"]).strip() if row["file"] else ""
        advice = _ADVICE.get(row["kind"], _nothing)(row, source) if row["file"] else None
        if advice is not None:
            causes.setdefault(advice[1], []).append((row, advice[0]))
    worth = [_line(instead, told) for instead, told in causes.items() if _is_worth(told)]
    return sorted(worth, key=_seconds, reverse=True)[:LINES_WORTH_CHANGING]


def _is_worth(told: list[tuple[dict[str, Any], str]]) -> bool:
    """Whether a cause is told: an operator without a lowering always, others for their seconds."""
    rows = [row for row, _ in told]
    return rows[0]["kind"] == "fallback" or _sum(rows, "seconds") >= SECONDS_WORTH_A_CHANGE


def _seconds(row: dict[str, Any]) -> float:
    return row["seconds"]


def _line(instead: str, told: list[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    """The dearest line of a cause, what it cost, and where else the cause is met."""
    (first, cost), *others = told
    return {
        **{name: first[name] for name in ("file", "line", "function")},
        "source": linecache.getline(first["file"], first["line"]).strip(),
        "seconds": sum(row["seconds"] for row, _ in told),
        "cost": cost,
        "instead": instead,
        "also": [f"{_shown(row['file'])}:{row['line']}" for row, _ in others],
    }


_Advice = tuple[str, str] | None  # what a line cost, and what to write instead


def _nothing(row: dict[str, Any], source: str) -> _Advice:
    return None


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
        f"waited {row['count']:,} times to see that indices of {names} are within bounds",
        "TORCH_JAX_CHECK_INDICES=never, where indices and labels are known to be",
    )


def _of_fallbacks(row: dict[str, Any], source: str) -> _Advice:
    names = ", ".join(sorted(row["what"]))
    instead = (
        "no lowering to JAX: use another operator, or write one with torch_jax.register_op "
        f'("{min(row["what"], default="")}")'
    )
    return f"ran {names} on the CPU {row['count']:,} times, with copies", instead


def _of_compiles(row: dict[str, Any], source: str) -> _Advice:
    """Of calls that meet ever new shapes, and of several operators that could be one program.

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


# --- as text --------------------------------------------------------------------------------------


def text(told: dict[str, Any]) -> str:
    """A summary for people.

    >>> found = {"rows": [], "device": "", "processes": 0, "peak_bytes": 0, "operators": []}
    >>> print(text(summary(found, "train.py", 1.0, 0)))
    torch_jax: train.py ran for 1.0 s
      nothing ran on device jax: the script moved no tensor to "cuda"
    """
    return "\n".join(_lines_of(told))


def _lines_of(told: dict[str, Any]) -> Iterator[str]:
    ended = f", and ended with status {told['status']}" if told["status"] else ""
    yield f"torch_jax: {told['script']} ran for {told['seconds']:.1f} s{ended}"
    if not told["device"]:
        yield '  nothing ran on device jax: the script moved no tensor to "cuda"'
        return
    of = f", {told['processes']} processes" if told["processes"] > 1 else ""
    memory = f", {size(told['peak_bytes'])} of memory" if told["peak_bytes"] else ""
    yield f"  on jax        {told['operators']} kinds of operators on {told['device']}{of}{memory}"
    yield from _fallbacks(told)
    programs = _programs(told["rows"])
    share = 100 * programs.seconds / max(told["seconds"], 1e-9)
    yield f"  XLA           {programs} ({share:.0f} % of the time)"
    yield (
        f"  looked at     {told['waits']:,} values, waiting {told['wait_seconds']:.1f} s; "
        f"{size(told['bytes_to_host'])} to the host, {size(told['bytes_to_device'])} to the device"
    )
    if told["checks"]:
        yield (
            f"  checked       {told['checks']:,} times that indices are within bounds, waiting "
            f"{told['check_seconds']:.1f} s"
        )
    if told["lines"]:
        yield "The lines worth changing:"
    for line in told["lines"]:
        also = f"; also {', '.join(line['also'])}" if line["also"] else ""
        yield f"  {_shown(line['file'])}:{line['line']}, in {line['function']}{also}"
        yield f"      {line['source']}"
        yield f"    {line['seconds']:.2f} s: {line['cost']}"
        yield f"    instead: {line['instead']}"


def _shown(path: str) -> str:
    """A path as seen from here, where it lies here."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _fallbacks(told: dict[str, Any]) -> Iterator[str]:
    if not told["cpu_fallbacks"]:
        yield "  on the CPU    no operator fell back"
        return
    seconds = told["cpu_fallback_seconds"]
    yield f"  on the CPU    {len(told['cpu_fallbacks'])} operators in {seconds:.1f} s"
    for name, count in told["cpu_fallbacks"].items():
        yield f"                {count:6,} x {name}"


def size(count: int) -> str:
    """A number of bytes as people write it.

    >>> size(500), size(3 << 19)
    ('500 B', '1.5 MiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {'KMGT'[power - 1]}iB"
