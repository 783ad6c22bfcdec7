"""The code that a traced function ran, and what its names say about the values that were met."""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType
from typing import Any

from torch_jax.capture.state.bytecode import Names

_NONE: frozenset[str] = frozenset()
_NO_NAMES = Names(*(_NONE,) * 9, everything=False)
# What reads an object's attributes without naming them, in code that is not watched.
_COPIERS = frozenset(
    ("copy", "deepcopy", "replace", "asdict", "astuple", "fields", "dump", "dumps", "save")
)
# Names whose use means that the code tests whether a value is a number of any class.
_ANY_NUMBER = {"numbers", "Number", "Real", "Rational", "Integral", "isscalar"}


class CodeThatRan:
    """The code objects that ran under one trace, and the names that they mention."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.names: set[Names] = set()
        self.users_names: set[Names] = set()  # those of code that no library is known for
        self._names_of_steps: set[Names] = set()
        self._read: frozenset[str] = _NONE
        self._counters: frozenset[str] = _NONE
        self._everything = False

    def add(
        self, code: CodeType, names: Names, in_a_step: bool = False, is_users: bool = True
    ) -> None:
        """Code runs, ``in_a_step`` of an optimizer or not; a user's, or that of a known library.

        What is read during a step needs no guard: the optimizer's numbers are inputs then.
        """
        self.codes.add(code)
        (self._names_of_steps if in_a_step else self.names).add(names)
        if is_users and not in_a_step:
            self.users_names.add(names)

    def add_attributes(self, attributes: Iterable[str]) -> None:
        """Attributes of these names are read by something that has no code of Python."""
        self.names.add(_NO_NAMES._replace(attributes=frozenset(attributes)))

    def classify_names(self) -> None:
        """Now that all code has run: which names it reads, and which it only counts up or down."""
        names = [*self.names, *self._names_of_steps]
        self._counters = _counters(names)
        counted = _union(names, "counts") - self._counters
        self._read = _union(names, "globals", "attributes") | counted
        self._everything = any(n.everything for n in self.names)

    def stored(self) -> frozenset[str]:
        """Attributes that the code sets."""
        return _union(self.names, "stores")

    def reads(self, name: str) -> bool:
        """Whether the code names an attribute or a global of this name for its value."""
        return name in self._read

    def may_read(self, name: str) -> bool:
        """Whether a call may depend on the value of an attribute or a global of this name.

        ``forward`` is called by PyTorch. A counter of this name whose value is a number was told
        apart before; any other value that is added to may be of a class of its own.
        """
        return self._everything or self.reads(name) or name == "forward" or name in self._counters

    def counts(self, place: Any, now: Any) -> bool:
        """Whether a number was only counted up or down: nothing depends on its value then."""
        is_number = type(place.value) is int and type(now) is int
        return is_number and place.is_variable and place.key in self._counters

    def tells_numbers(self, kind: type, places: Iterable[Any]) -> bool:
        """Whether the code may tell numbers of a class from other values.

        It may ask for the class by its own name, or by that of one of the ``places``.
        """
        asked = _union([*self.names, *self._names_of_steps], "tells")
        if asked & (_ANY_NUMBER | {kind.__name__}):
            return True
        return any(_holds_class(place.value, kind) for place in places if place.key in asked)


def _counters(names: Iterable[Names]) -> frozenset[str]:
    """What code with these names does nothing with but count it up or down."""
    names = list(names)
    read = _union(names, "globals", "attributes", "cells")
    if read & _COPIERS or any(n.everything for n in names):
        return _NONE
    return _union(names, "counts") - _union(names, "stores", "global_stores") - read


def _union(names: Iterable[Names], *kinds: str) -> frozenset[str]:
    return frozenset().union(*(getattr(n, kind) for n in names for kind in kinds))


def _holds_class(value: Any, kind: type) -> bool:
    """Whether a value is a class of numbers, or has one among others, for ``isinstance``."""
    classes = value if isinstance(value, tuple) else (*getattr(value, "__args__", ()), value)
    return any(isinstance(c, type) and issubclass(kind, c) and c is not object for c in classes)
