"""The report on a script: what ran where, and the lines worth changing, as text and as JSON.

Pure functions of what :mod:`.costs` has counted.
"""

from __future__ import annotations

import linecache
import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch_jax.core.compilations import Counts

_LINES = 5
_OFTEN = 8  # as often as a line must wait before it is a loop that does
_LEAST = 0.001  # seconds that are worth a change

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
        "bytes_to_host": _sum(of_kind["to_host"], "bytes"),
        "bytes_to_device": _sum(of_kind["to_device"], "bytes"),
        "lines": lines_worth_changing(rows),
        "rows": rows,
    }


_KINDS = ("compile", "to_host", "to_device", "fallback")


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

    A line that waits now and then is left out: somebody has to look at the results.

    >>> row = {"kind": "to_host", "file": "a.py", "line": 3, "function": "train", "count": 500}
    >>> row |= {"seconds": 1.5, "bytes": 2000, "what": {}, **Counts()._asdict()}
    >>> [line] = lines_worth_changing([row])
    >>> line["cost"], line["instead"]
    ('waited 500 times for a value', 'keep the value a tensor until the loop is over')
    """
    lines: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=_seconds, reverse=True):
        if row["file"] and _is_worth(row):
            lines.setdefault((row["file"], row["line"]), []).append(row)
    worth = [line for line in map(_line, lines.values()) if _seconds(line) >= _LEAST]
    return sorted(worth, key=_seconds, reverse=True)[:_LINES]


def _is_worth(row: dict[str, Any]) -> bool:
    if row["kind"] == "to_host":
        return row["count"] >= _OFTEN
    return row["kind"] in ("compile", "fallback")


def _seconds(row: dict[str, Any]) -> float:
    return row["seconds"]


def _line(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A line of what it cost, the dearest first, of which there is the advice."""
    first = rows[0]
    source = linecache.getline(first["file"], first["line"]).strip()
    advice = [_ADVICE[row["kind"]](row, source) for row in rows]
    return {
        **{name: first[name] for name in ("file", "line", "function")},
        "source": source,
        "seconds": _sum(rows, "seconds"),
        "cost": "; ".join(cost for cost, _ in advice),
        "instead": advice[0][1],
    }


def _of_waits(row: dict[str, Any], source: str) -> tuple[str, str]:
    found = [instead for pattern, instead in _WAITS if re.search(pattern, source)]
    instead = found[0] if found else "keep the value a tensor until the loop is over"
    return f"waited {row['count']:,} times for a value", instead


def _of_fallbacks(row: dict[str, Any], source: str) -> tuple[str, str]:
    names = ", ".join(sorted(row["what"]))
    instead = (
        "no lowering to JAX: use another operator, or write one with torch_jax.register_op "
        f'("{min(row["what"], default="")}")'
    )
    return f"ran {names} on the CPU {row['count']:,} times, with copies", instead


def _of_compiles(row: dict[str, Any], source: str) -> tuple[str, str]:
    most, times = Counter(row["what"]).most_common(1)[0] if row["what"] else ("a program", 1)
    cost = str(_programs([row]))
    if times < _OFTEN:
        return cost, "put the step into a function under @torch_jax.jit: one program"
    return (
        f"{cost}; {times:,} times for other shapes or numbers of {most}",
        "pad to few sizes (drop_last=True, padding to multiples), or @torch_jax.jit(dynamic=...)",
    )


_ADVICE = {"compile": _of_compiles, "fallback": _of_fallbacks, "to_host": _of_waits}


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
    if told["lines"]:
        yield "The lines worth changing:"
    for line in told["lines"]:
        yield f"  {_shown(line['file'])}:{line['line']}, in {line['function']}"
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
