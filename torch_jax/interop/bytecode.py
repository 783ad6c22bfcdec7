"""The names that a piece of Python code reads, from its bytecode."""

from __future__ import annotations

import dis
import functools
from types import CodeType
from typing import NamedTuple

_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
_CELL = {"LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF"}
_BY_TEXT = {"getattr", "hasattr", "setattr", "delattr"}  # attributes named by strings
_ALL = {"__dict__", "vars", "attrgetter", "__getattribute__"}  # attributes of any name


class Names(NamedTuple):
    """The names that code mentions, the functions inside it included.

    Attributes:
      globals: of its module, and builtins.
      attributes: of any object.
      cells: variables of closures.
      everything: whether the code may look at attributes of any name.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    cells: frozenset[str]
    everything: bool


@functools.cache
def names_of(code: CodeType) -> Names:
    """Return the names that ``code`` mentions.

    >>> def f(x): return scale * x.weight + getattr(x, "bias", 0)
    >>> names = names_of(f.__code__)
    >>> sorted(names.globals - {"getattr"}), sorted(names.attributes), names.everything
    (['scale'], ['bias', 'weight'], False)
    """
    names, attributes, cells, everything = set[str](), set[str](), set[str](), False
    instructions = list(dis.get_instructions(code))
    for at, instruction in enumerate(instructions):
        for kinds, found in ((_GLOBAL, names), (_ATTRIBUTE, attributes), (_CELL, cells)):
            if instruction.opname in kinds:
                found.add(instruction.argval)
        if instruction.opname in _GLOBAL and instruction.argval in _BY_TEXT:
            text = _second_argument(instructions, at)
            everything |= text is None
            attributes |= {text} if text is not None else set()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = names_of(inner)
            names |= more.globals
            attributes |= more.attributes
            cells |= more.cells
            everything |= more.everything
    everything |= bool((names | attributes) & _ALL)
    return Names(frozenset(names), frozenset(attributes), frozenset(cells), everything)


def _second_argument(instructions: list[dis.Instruction], at: int) -> str | None:
    """Return the second argument of the call of the function loaded at ``at``, a literal text."""
    text, depth = None, 0
    for instruction in instructions[at + 1 :]:
        before = depth
        depth += dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if instruction.opname.startswith("CALL") and depth < 0:
            break
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            return None
        if before == 1 and depth == 2:
            found = instruction.opname.startswith("LOAD_CONST")
            text = instruction.argval if found and isinstance(instruction.argval, str) else None
        elif depth <= 2 and instruction.opname not in ("PRECALL", "NOP", "CACHE"):
            text = None  # the code did something to the text
    return text
