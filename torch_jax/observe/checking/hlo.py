"""Read collectives and the largest arrays from the text of a compiled program.

The format is XLA's: https://openxla.org/xla/hlo_dumps. A line is ``%name = type[shape]{layout}
operation(operands), metadata={…}``. The metadata has the number of a stack frame, which tables at
the head of the text turn into a file and a line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

COLLECTIVES = "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"
_INSTRUCTION = re.compile(r"^  (?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(", re.M)
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_BITS = {"pred": 8, "c64": 64, "c128": 128}
_NO_MEMORY = frozenset("parameter constant tuple get-tuple-element bitcast".split())


class Array(NamedTuple):
    """An array that a program makes on its way.

    Attributes:
      nbytes: of it, on one chip.
      form: dtype and shape, as XLA writes them.
      operator: of PyTorch's; empty where none is known.
      line: of the user's code; empty where none is known.
    """

    nbytes: int
    form: str
    operator: str
    line: str


def collectives(text: str) -> dict[str, tuple[int, int]]:
    """Return for each kind of collective how often a program has it, and the bytes of its results.

    >>> collectives("  %all-reduce.1 = f32[4,8]{1,0} all-reduce(%x), channel_id=1\\n")
    {'all-reduce': (1, 128)}
    """
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for _, form, operation in _INSTRUCTION.findall(text):
        kind = operation.removesuffix("-start")
        if kind in COLLECTIVES:
            arrays = list(_arrays(form))
            # what starts gives its operand back, too
            counted = (
                arrays[len(arrays) // 2 :] if operation != kind and len(arrays) > 1 else arrays
            )
            counts[kind] += 1
            sizes[kind] += sum(nbytes for nbytes, _ in counted)
    return {kind: (counts[kind], sizes[kind]) for kind in counts}


def largest(text: str, most: int = 3) -> list[Array]:
    """Return the largest arrays that a program makes on its way, each form and operator once."""
    entry = text[text.find("\nENTRY ") :]
    lines = _lines(text)
    found: dict[tuple, Array] = {}
    for at in _INSTRUCTION.finditer(entry):
        _, form, operation = at.groups()
        if operation in _NO_MEMORY or form.startswith("("):
            continue
        rest = entry[at.end() : entry.find("\n", at.end())]
        operator = re.search(r"jit\((aten\.\w+|[a-z_]+\.\w+)\)", rest)
        frame = re.search(r"stack_frame_id=(\d+)", rest)
        for nbytes, shown in _arrays(form):
            one = Array(
                nbytes,
                shown,
                operator.group(1) if operator else operation,
                lines.get(frame.group(1), "") if frame else "",
            )
            found.setdefault(one[1:3], one)
    return sorted(found.values(), reverse=True)[:most]


def _arrays(form: str) -> Iterator[tuple[int, str]]:
    """Return the bytes and the text of each array of a type, which may be a tuple."""
    for dtype, lengths in _ARRAY.findall(form):
        bits = _BITS.get(dtype) or int(re.sub(r"\D", "", dtype)[:2] or 0)
        size = 1
        for length in filter(None, lengths.split(",")):
            size *= int(length)
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
        found[frame] = f"{name}:{_field('line', place)}" if name else ""
    return found


def _field(name: str, row: str) -> str:
    found = re.search(rf"\b{name}=(\d+)", row)
    return found.group(1) if found else ""
