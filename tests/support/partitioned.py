"""What XLA's partitioner has made of a program: its collectives, each as often as it runs."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict

_SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8}
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_COLLECTIVE = re.compile(
    r" = (.*?) (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("
)
_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]|replica_groups=\{\{([0-9,]*)\}")
_CALLED = re.compile(r"(?:body|to_apply|calls)=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def collectives(text: str) -> Counter[tuple[str, int]]:
    """Bytes that each device holds, by kind and by the number of devices that take part.

    ``text`` is a compiled module. What stands in the body of a loop counts once for each round.
    """
    own, calls = _computations(text)
    entry = re.search(r"^ENTRY %?([\w.-]+)", text, re.MULTILINE)
    assert entry is not None
    return _total(entry[1], own, calls)


def _total(name: str, own: dict, calls: dict) -> Counter[tuple[str, int]]:
    found = Counter(own[name])
    for called, times in calls[name]:
        for key, count in _total(called, own, calls).items():
            found[key] += times * count
    return found


def _computations(text: str) -> tuple[dict[str, Counter], dict[str, list[tuple[str, int]]]]:
    """For each computation its own collectives, and whom it calls how often."""
    own: dict[str, Counter] = defaultdict(Counter)
    calls: dict[str, list[tuple[str, int]]] = defaultdict(list)
    name = ""
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            name = head[1]
            continue
        found = _COLLECTIVE.search(line)
        if found:
            own[name][found[2], _devices(line)] += _bytes(found[1])
        for called in [] if found else _CALLED.findall(line):
            trips = _TRIPS.search(line)
            assert trips or " while(" not in line, line
            calls[name].append((called, int(trips[1]) if trips else 1))
    return own, calls


def _bytes(shapes: str) -> int:
    return sum(
        _SIZES[dtype] * math.prod(map(int, filter(None, dims.split(","))))
        for dtype, dims in re.findall(r"(\w+)\[([0-9,]*)\]", shapes)
    )


def _devices(line: str) -> int:
    """How many devices take part in a collective; 0 where the program does not say."""
    groups = _GROUPS.search(line)
    if groups is None:
        return 0
    return int(groups[2]) if groups[2] else len(groups[3].split(","))
