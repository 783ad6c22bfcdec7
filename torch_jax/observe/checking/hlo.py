"""Read collectives and the largest arrays from the text of a compiled program.

The format is XLA's: https://openxla.org/xla/hlo_dumps. A line is ``%name = type[shape]{layout}
operation(operands), metadata={…}``. The metadata has the number of a stack frame, which tables at
the head of the text turn into a file and a line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch_jax.observe.checking import loops

COLLECTIVES = "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"
_INSTRUCTION = re.compile(r"^  (?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(", re.M)
_CHANNEL = re.compile(r"channel_id=(\d+)")
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
    """Return for each kind of collective how often it runs, and the bytes of its results.

    >>> text = "\\nENTRY %main () -> f32[4] {\\n  %sum = f32[4]{0} all-reduce(%x), channel_id=1\\n}"
    >>> collectives(text)
    {'all-reduce': (1, 16)}
    """
    parts, _ = loops.rounds(text)
    # the compiler of TPUs writes one collective into each of the fusions that run during it
    found: dict[Any, tuple[int, str, int]] = {}
    for name, part in parts.items():
        for at, (channel, kind, nbytes) in enumerate(_collectives(part.text)):
            one = channel or (name, at)
            counted = part.runs, kind, nbytes
            found[one] = min(found.get(one, counted), counted)
    totals: dict[str, tuple[int, int]] = {}
    for runs, kind, nbytes in found.values():
        count, total = totals.get(kind, (0, 0))
        totals[kind] = count + runs, total + runs * nbytes
    return totals


def _collectives(text: str) -> Iterator[tuple[str, str, int]]:
    """Return the channel, the kind and the bytes of the result of each collective."""
    for at in _INSTRUCTION.finditer(text):
        _, form, operation = at.groups()
        kind = operation.removesuffix("-start")
        if kind in COLLECTIVES:
            arrays = [one for one in _arrays(form) if one[1] != "u32[]"]  # of its own state
            if operation != kind and kind != "all-reduce":  # its operands are results, too
                arrays = arrays[len(arrays) // 2 :]
            channel = _CHANNEL.search(text, at.end(), text.find("\n", at.end()))
            yield channel[1] if channel else "", kind, sum(nbytes for nbytes, _ in arrays)


def largest(text: str, most: int = 3) -> list[Array]:
    """Return the largest arrays that a program makes on its way, each form and operator once."""
    parts, repeated = loops.rounds(text)
    whole = [*(parts[one.body].text for one in repeated), list(parts.values())[-1].text]
    return sorted(_made("\n".join(whole), _lines(text)), reverse=True)[:most]


def _made(text: str, lines: dict[str, str]) -> Iterator[Array]:
    """Return the arrays that instructions make, each form and operator once."""
    found: dict[tuple, Array] = {}
    for at in _INSTRUCTION.finditer(text):
        _, form, operation = at.groups()
        if operation in _NO_MEMORY or form.startswith("("):
            continue
        rest = text[at.end() : text.find("\n", at.end())]
        named = re.search(r"jit\(([a-z_]+\.\w+)\)", rest)
        operator = named[1] if named else operation
        line = lines.get(_field("stack_frame_id", rest), "")
        for nbytes, shown in _arrays(form):
            found.setdefault((shown, operator), Array(nbytes, shown, operator, line))
    yield from found.values()


def _arrays(form: str) -> Iterator[tuple[int, str]]:
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
