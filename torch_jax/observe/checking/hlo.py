"""Read the text of a compiled program: rounds of its loops, collectives, and the largest arrays.

The format is XLA's: https://openxla.org/xla/hlo_dumps. A line is ``%name = type[shape]{layout}
operation(operands), metadata={…}``. The metadata has the number of a stack frame, which tables at
the head of the text turn into a file and a line.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

COLLECTIVES = "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"
_INSTRUCTION = re.compile(r"^  (?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)", re.M)
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_BITS = {"pred": 8, "c64": 64, "c128": 128}
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \([^\n]*\{\n(.*?)\n\}", re.M | re.S)
_CALLED = re.compile(
    r"(?:to_apply|calls|condition|body|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_LOOP = re.compile(r" while\(.* condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_COMPARED = re.compile(r"compare\(%?([\w.\-]+), %?([\w.\-]+)\), direction=LT")
_NO_MEMORY = frozenset("parameter constant tuple get-tuple-element bitcast".split())


class Loop(NamedTuple):
    """A loop, by the name of the computation that it repeats."""

    body: str
    rounds: int | None  # None where this depends on values
    times: int  # how often the loop itself is begun in a run of the program


class Part(NamedTuple):
    """A computation: the entry, the body of a loop, or one that these call."""

    text: str  # its instructions
    runs: int  # in one run of the program


class Array(NamedTuple):
    """An array that a program makes on its way."""

    nbytes: int  # on one chip
    form: str  # dtype and shape, as XLA writes them
    operator: str  # of PyTorch's; XLA's where none is known
    line: str  # of the user's code; empty where none is known


@functools.lru_cache(maxsize=1)  # costs, collectives and arrays are read from one text
def rounds(text: str) -> tuple[dict[str, Part], list[Loop]]:
    """Return how often each computation of a compiled program runs, and its loops.

    The text of a program has each computation before those that call it, and the entry last.
    """
    texts = dict(_COMPUTATION.findall(text))
    runs, loops = Counter(dict.fromkeys(list(texts)[-1:], 1)), list[Loop]()
    for name in reversed(texts):
        for line in filter(_CALLED.search, texts[name].splitlines()):
            loop, times = _LOOP.search(line), runs[name]
            if loop:
                count = _rounds_of(line, texts.get(loop[1], ""), texts.get(loop[2], ""))
                loops.append(Loop(loop[2], count, times))
                times *= count or 1
            called = (one for names in _CALLED.findall(line) for one in names.split(","))
            runs.update(dict.fromkeys((one.strip(" %{}") for one in called), times))
    return {name: Part(part, runs[name]) for name, part in texts.items()}, loops


def _rounds_of(line: str, condition: str, body: str) -> int | None:
    """Return how often a loop runs: by the compiler's note, or by its counter's bound and step."""
    if known := _KNOWN.search(line):
        return int(known[1])
    compared = _COMPARED.search(condition)
    bound = compared and _constant(condition, compared[2])
    counter = compared and re.search(r"index=(\d+)", _definition(condition, compared[1]))
    if not bound or not counter:
        return None
    results = re.findall(r"%([\w.\-]+)", body[body.find(" ROOT ") :].partition(" tuple(")[2])
    added = re.search(r" add\((.*?)\)", _definition(body, results[int(counter[1])]))
    steps = [_constant(body, one.strip(" %")) for one in added[1].split(",")] if added else []
    return -(-bound // max(filter(None, steps), default=1))


def _definition(computation: str, name: str) -> str:
    """Return the line of an instruction."""
    found = re.search(rf"^ *(?:ROOT )?%?{re.escape(name)} = .*", computation, re.M)
    return found[0] if found else ""


def _constant(computation: str, name: str) -> int | None:
    """Return the number of a constant; None for any other instruction."""
    found = re.search(r" constant\((\d+)\)", _definition(computation, name))
    return int(found[1]) if found else None


def collectives(text: str) -> dict[str, tuple[int, int]]:
    """Return for each kind of collective how often it runs, and the bytes of its results.

    >>> text = "\\nENTRY %main () -> f32[4] {\\n  %sum = f32[4]{0} all-reduce(%x), channel_id=1\\n}"
    >>> collectives(text)
    {'all-reduce': (1, 16)}
    """
    parts, _ = rounds(text)
    # the compiler of TPUs writes one collective into each of the fusions that run during it
    found: dict[Any, tuple[int, str, int]] = {}
    for name, part in parts.items():
        for at, (_, form, operation, rest) in enumerate(instructions(part.text)):
            kind = operation.removesuffix("-start")
            if kind in COLLECTIVES:
                moved = [one for one in arrays(form) if one[1] != "u32[]"]  # of its own state
                if operation != kind and kind != "all-reduce":  # its operands are results, too
                    moved = moved[len(moved) // 2 :]
                one = _field("channel_id", rest) or (name, at)
                counted = part.runs, kind, sum(nbytes for nbytes, _ in moved)
                found[one] = min(found.get(one, counted), counted)
    totals: dict[str, tuple[int, int]] = {}
    for runs, kind, nbytes in found.values():
        count, total = totals.get(kind, (0, 0))
        totals[kind] = count + runs, total + runs * nbytes
    return totals


def largest(text: str, most: int = 3) -> list[Array]:
    """Return the largest arrays that a program makes on its way, each form and operator once."""
    parts, repeated = rounds(text)
    whole = [*(parts[one.body].text for one in repeated), list(parts.values())[-1].text]
    found: dict[tuple, Array] = {}
    lines = _lines(text)
    for _, form, operation, rest in instructions("\n".join(whole)):
        if operation in _NO_MEMORY or form.startswith("("):
            continue
        named = re.search(r"jit\(([a-z_]+\.\w+)\)", rest)
        operator = named[1] if named else operation
        line = lines.get(_field("stack_frame_id", rest), "")
        for nbytes, shown in arrays(form):
            found.setdefault((shown, operator), Array(nbytes, shown, operator, line))
    return sorted(found.values(), reverse=True)[:most]


def instructions(computation: str) -> list[tuple[str, str, str, str]]:
    """Return the name, type and operation of each instruction, and the rest of its line."""
    return _INSTRUCTION.findall(computation)


def arrays(form: str) -> Iterator[tuple[int, str]]:
    """Return the bytes and the text of each array of a type, which may be a tuple."""
    for dtype, lengths in _ARRAY.findall(form):
        bits = _BITS.get(dtype) or int(re.sub(r"\D", "", dtype)[:2] or 0)
        size = math.prod(map(int, filter(None, lengths.split(","))))
        yield size * bits // 8, f"{dtype}[{lengths}]"


def _lines(text: str) -> dict[str, str]:
    """Return the file and line of each number of a stack frame."""
    tables = {
        name: dict(re.findall(r"^(\d+) (.*)$", text[start : text.find("\n\n", start)], re.M))
        for name in ("FileNames", "FileLocations", "StackFrames")
        if (start := text.find(f"\n{name}\n")) >= 0
    }
    files, places = tables.get("FileNames", {}), tables.get("FileLocations", {})
    found = {}
    for frame, row in tables.get("StackFrames", {}).items():
        place = places.get(_field("file_location_id", row), "")
        name = files.get(_field("file_name_id", place), "").strip('"')
        is_file = name and not name.startswith("<")  # "<frozen runpy>" is no file of the user's
        found[frame] = f"{name}:{_field('line', place)}" if is_file else ""
    return found


def _field(name: str, row: str) -> str:
    found = re.search(rf"\b{name}=(\d+)", row)
    return found[1] if found else ""
