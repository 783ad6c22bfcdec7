"""The tape: what an observed call did on the host, to be done again at each call.

A learning rate is read and multiplied, a scheduler moves on: a later call plays the tape first, and
its numbers are inputs of the program. Where Python itself needs a number – ``if weight_decay != 0``
– the outcome is written down too, and a later call with another one raises :class:`Changed`, before
anything has moved: what has an effect is done last.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple


class Changed(Exception):
    """Something that a program relied on is different now; the message says what."""


class Step(NamedTuple):
    """One thing that is done on the host: ``env[slot] = function(*(env[i] for i in operands))``."""

    slot: int
    function: Callable[..., Any]
    operands: tuple[int, ...]
    needed: bool  # never left out, as it checks something, or has an effect
    has_effect: bool  # it changes something older than the call, or reads what such steps do


class Tape:
    """Steps in order, over an environment of values; it holds constants from the start."""

    def __init__(self) -> None:
        self.env: list[Any] = []
        self.steps: list[Step] = []
        self._known: dict[tuple, int] = {}
        self._literals: dict[tuple[type, str], int] = {}
        self._expected: set[tuple] = set()

    def constant(self, value: Any) -> int:
        """Return the slot of a value that is the same at every call."""
        self.env.append(value)
        return len(self.env) - 1

    def slot_of(self, value: Any) -> int:
        """Return the slot of an object that a step has given; of another one, a constant."""
        slot = next((slot for slot, known in enumerate(self.env) if known is value), None)
        return self.constant(value) if slot is None else slot

    def literal(self, number: float) -> int:
        """Return the slot of a Python number; equal ones share a slot."""
        key = type(number), repr(number)  # which differs for 0.0 and -0.0
        if key not in self._literals:
            self._literals[key] = self.constant(number)
        return self._literals[key]

    def record(
        self,
        function: Callable[..., Any],
        operands: tuple[int, ...],
        value: Any,
        needed: bool = False,
        has_effect: bool = False,
    ) -> int:
        """Write down that ``function`` of these slots gave ``value``; returns its slot."""
        slot = self.constant(value)
        self.steps.append(Step(slot, function, operands, needed, has_effect))
        return slot

    def once(self, function: Callable[..., Any], operands: tuple[int, ...]) -> tuple[int, Any]:
        """Call ``function`` and record it, once for the same operands; the slot and the value."""
        key = (function, operands)
        if key not in self._known:
            value = function(*(self.env[i] for i in operands))
            self._known[key] = self.record(function, operands, value)
        slot = self._known[key]
        return slot, self.env[slot]

    def expect(self, what: str, slot: int, operands: tuple[int, ...] = ()) -> None:
        """Have later calls raise :class:`Changed` if ``slot`` does not hold the present value."""
        if (what, slot, operands) not in self._expected:
            self._expected.add((what, slot, operands))
            check = functools.partial(_expect, what, self.env[slot])
            self.record(check, (slot, *operands), None, needed=True)

    def forget(self) -> None:
        """Let :meth:`once` read everything again, because a step may have written it."""
        self._known.clear()

    def prune(self, needed: set[int]) -> None:
        """Leave out steps whose results are not needed, and put those with effects last."""
        kept = []
        for step in reversed(self.steps):
            if step.needed or step.slot in needed:
                needed.update(step.operands)
                kept.append(step)
        kept.reverse()
        self.steps = sorted(kept, key=attrgetter("has_effect"))

    def play(self) -> list[Any]:
        """Do every step again; returns the environment."""
        env = self.env.copy()
        for slot, function, operands, *_ in self.steps:
            env[slot] = function(*[env[i] for i in operands])
        return env


def _expect(what: str, expected: Any, found: Any, *operands: Any) -> None:
    """Raise :class:`Changed` where a value is not that of the observed call."""
    if found != expected or type(found) is not type(expected):
        numbers = ", ".join(map(repr, operands))
        raise Changed(f"{what}({numbers}) was {expected!r}, now it is {found!r}")
