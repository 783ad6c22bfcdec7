"""Count the rounds of a compiled program's loops; XLA's own estimates have one round of each."""

from __future__ import annotations

import functools
import re
from collections import Counter
from typing import NamedTuple

from torch_jax._private import jax_core

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALLS = re.compile(r"(?:to_apply|calls|condition|body|branch_computations)=")
_CALLED = re.compile(r"(?:to_apply|calls|condition|body)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_LOOP = re.compile(r" while\(.* condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_COMPARED = re.compile(r"compare\(%?([\w.\-]+), %?([\w.\-]+)\), direction=LT")


class Loop(NamedTuple):
    """A loop.

    Attributes:
      body: the name of the computation that is repeated.
      rounds: how often it runs; None where this depends on values.
      times: how often the loop itself is begun in a run of the program.
    """

    body: str
    rounds: int | None
    times: int


class Part(NamedTuple):
    """A computation: the entry, the body of a loop, or one that these call.

    Attributes:
      text: its instructions.
      runs: how often it runs in one run of the program.
    """

    text: str
    runs: int


@functools.lru_cache(maxsize=1)  # costs, collectives and arrays are read from one text
def rounds(text: str) -> tuple[dict[str, Part], list[Loop]]:
    """Return how often each computation of a compiled program runs, and its loops.

    The text of a program has each computation before those that call it, and the entry last.
    """
    texts = _computations(text)
    runs, loops = Counter(dict.fromkeys(list(texts)[-1:], 1)), list[Loop]()
    for name in reversed(texts):
        for line in filter(_CALLS.search, texts[name].splitlines()):
            loop, times = _LOOP.search(line), runs[name]
            if loop:
                count = _rounds_of(line, texts.get(loop[1], ""), texts.get(loop[2], ""))
                loops.append(Loop(loop[2], count, times))
                times *= count or 1
            runs.update(dict.fromkeys(_called(line), times))
    return {name: Part(part, runs[name]) for name, part in texts.items()}, loops


def costs(text: str, once: dict[str, float] | None = None) -> dict[str, float]:
    """Return the ``flops`` and ``bytes accessed`` of a program, with all rounds of its loops.

    ``once`` are its compiler's estimates with one round of each, if they are known.
    """
    found = dict(once or jax_core.costs_of_text(text))
    for loop in rounds(text)[1]:
        if loop.rounds:
            for name, cost in jax_core.costs_of_text(_begun_at(text, loop.body)).items():
                found[name] = found.get(name, 0) + loop.times * (loop.rounds - 1) * cost
    return found


def _computations(text: str) -> dict[str, str]:
    """Return the instructions of each computation."""
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=(?:ENTRY )?%?[\w.\-]+ \(.*\{\n)", text)[1:]:
        head, _, instructions = block.partition("\n")
        name = _HEAD.match(head)
        if name:
            found[name[2]] = instructions.partition("\n}")[0]
    return found


def _called(line: str) -> list[str]:
    """Return the computations that an instruction calls."""
    found = _CALLED.findall(line)
    for branches in _BRANCHES.findall(line):
        found += [one.strip().lstrip("%") for one in branches.split(",")]
    return found


def _rounds_of(line: str, condition: str, body: str) -> int | None:
    """Return how often a loop runs: by the compiler's note, or by its counter's bound and step."""
    known = _KNOWN.search(line)
    if known:
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


def _begun_at(text: str, name: str) -> str:
    """Return a program's text with another of its computations as its entry."""
    text = re.sub(r"^HloModule .*", "HloModule loop", text, count=1)
    text = text.replace("\nENTRY ", "\n", 1)
    return re.sub(rf"\n(?=%?{re.escape(name)} \()", "\nENTRY ", text, count=1)
