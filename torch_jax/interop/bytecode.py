"""The names that a piece of Python code reads, from its bytecode."""

from __future__ import annotations

import dis
import weakref
from types import CodeType
from typing import NamedTuple

_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
_BY_TEXT = {"getattr", "hasattr", "setattr", "delattr"}  # attributes named by strings


class Names(NamedTuple):
    """The names that code mentions, the functions inside it included.

    Attributes:
      globals: of its module, and builtins.
      attributes: of any object; where strings may name some, all strings of the code.
    """

    globals: frozenset[str]
    attributes: frozenset[str]


_known: weakref.WeakKeyDictionary[CodeType, Names] = weakref.WeakKeyDictionary()


def names_of(code: CodeType) -> Names:
    """Return the names that ``code`` mentions; they are kept as long as the code lives.

    >>> def f(x): return scale * x.weight + getattr(x, "bias", 0)
    >>> names = names_of(f.__code__)
    >>> sorted(names.globals - {"getattr"}), sorted(names.attributes)
    (['scale'], ['bias', 'weight'])
    """
    found = _known.get(code)
    if found is None:
        found = _known[code] = _found(code)
    return found


def _found(code: CodeType) -> Names:
    read = [(instruction.opname, instruction.argval) for instruction in dis.get_instructions(code)]
    names = {name for operation, name in read if operation in _GLOBAL}
    attributes = {name for operation, name in read if operation in _ATTRIBUTE}
    if names & _BY_TEXT:
        attributes |= {text for text in code.co_consts if isinstance(text, str)}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= names_of(inner).globals
            attributes |= names_of(inner).attributes
    return Names(frozenset(names), frozenset(attributes))
