"""The tape: what a traced function did on the host, to be done again at each call.

A step has a host side that XLA cannot run: a learning rate is read and multiplied, a counter on
the CPU goes up, a scheduler moves on. While a function is traced these are done once and written
down; a later call of the compiled program plays the tape first. Its numbers and CPU tensors then
become inputs of the program, so that none of them is baked into it.

Where Python itself needs a number – ``if weight_decay != 0`` – the outcome is written down too. A
later call with another outcome raises :class:`Changed`, and the function is traced again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Changed(Exception):
    """Something that the trace relied on is different now; the message says what.

    ``places`` are those of floats that changed.
    """

    def __init__(self, message: str, places: Iterable[Any] = ()):
        super().__init__(message)
        self.places = tuple(places)


# One-to-one functions: if the result is pinned, so are the operands (x + 1 reveals x, x % 3 does
# not).
_ONE_TO_ONE = (operator.add, operator.sub, operator.mul, operator.neg, operator.pos)


class Step(NamedTuple):
    """One thing that is done on the host: ``env[slot] = function(*(env[i] for i in operands))``."""

    slot: int
    function: Callable[..., Any]
    operands: tuple[int, ...]
    needed: bool  # the step changes something older than the call, or checks: never left out
    save: Callable[..., Callable[[], None]] | None  # called before the step; its result undoes it


class Tape:
    """Steps in order, over an environment of values; constants stand in it from the start."""

    def __init__(self) -> None:
        self.env: list[Any] = []
        self.steps: list[Step] = []
        self.pinned: set[int] = set()  # slots whose very values later calls must find
        self._saves = False
        self._known: dict[tuple, int] = {}
        self._expected: set[tuple] = set()

    def constant(self, value: Any) -> int:
        """The slot of a value that is the same at every call, or that the caller fills in."""
        self.env.append(value)
        return len(self.env) - 1

    def record(
        self,
        function: Callable[..., Any],
        operands: tuple[int, ...],
        value: Any,
        needed: bool = False,
        save: Any = None,
    ) -> int:
        """Write down that ``function`` of these slots gave ``value``; its slot."""
        slot = self.constant(value)
        self.steps.append(Step(slot, function, operands, needed, save))
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
        """Later calls must find in ``slot`` what stands there now, or raise :class:`Changed`."""
        if (what, slot, operands) not in self._expected:
            self._expected.add((what, slot, operands))
            self.record(_Expect(what, self.env[slot]), (slot, *operands), None, needed=True)

    def pin(self, slot: int) -> None:
        """The value of a slot is expected, and with it each value that it reveals."""
        self.pinned.add(slot)
        for step in self.steps:
            if step.slot == slot and step.function in _ONE_TO_ONE:
                for operand in step.operands:
                    self.pin(operand)

    def forget(self) -> None:
        """Let :meth:`once` read everything again, because a step may have written it."""
        self._known.clear()

    def prune(self, needed: set[int]) -> None:
        """Leave out steps whose results nobody needs."""
        kept = []
        for step in reversed(self.steps):
            if step.needed or step.slot in needed:
                needed.update(step.operands)
                kept.append(step)
        self.steps = kept[::-1]
        saving = [at for at, step in enumerate(self.steps) if step.save is not None]
        checks = [at for at, step in enumerate(self.steps) if isinstance(step.function, _Expect)]
        self._saves = bool(saving and checks and max(checks) > min(saving))

    def saves(self) -> list[Callable[[], Callable[[], None]]]:
        """Functions that save what steps change besides tensors; each gives one that undoes."""
        return [step.save for step in self.steps if step.save is not None and not step.operands]

    def play(self, filled: dict[int, Any]) -> list[Any]:
        """Do every step again, with some slots filled in; the environment after it."""
        env = self.env.copy()
        for slot, value in filled.items():
            env[slot] = value
        if self._saves:
            return self._play_or_undo(env)
        for slot, function, operands, _, _ in self.steps:
            env[slot] = function(*[env[i] for i in operands])
        return env

    def _play_or_undo(self, env: list[Any]) -> list[Any]:
        """Play, and where a check fails undo the steps before it."""
        undo: list[Callable[[], None]] = []
        try:
            for slot, function, operands, _, save in self.steps:
                values = [env[i] for i in operands]
                if save is not None:
                    undo.append(save(*values))
                env[slot] = function(*values)
        except Changed:
            for back in reversed(undo):
                back()
            raise
        return env


class _Expect:
    """A step that raises :class:`Changed` where a value is not that of the trace."""

    def __init__(self, what: str, outcome: Any):
        self.what, self.outcome = what, outcome

    def __call__(self, outcome: Any, *operands: Any) -> None:
        if outcome != self.outcome or type(outcome) is not type(self.outcome):
            numbers = ", ".join(map(repr, operands))
            raise Changed(f"{self.what}({numbers}) was {self.outcome!r}, now it is {outcome!r}")
