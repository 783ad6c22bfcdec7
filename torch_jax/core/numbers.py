"""Numbers of optimizers, whose values each compiled call reads.

While a call of a ``torch_jax.jit(pure=True)`` function is observed, a :class:`Number` replaces each
float of an optimizer's group. Arithmetic with it is written on the tape (``capture.tape``) and
repeated at each later call; a use of the value itself is written down as a guard, so that no result
computed from it can go stale.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from torch_jax.core.tracers import NotTraceableError


class _Node:
    """The form of a :class:`Number` in PyTorch's C++; kernels get ``SymFloat(node)``."""

    def __init__(self, number: Number):
        self.number = number

    def guard_float(self, _file: str, _line: int) -> float:
        """Return the plain float for C++: its value is fixed, and guarded."""
        return float(self.number)

    def is_symbolic(self) -> bool:
        return True

    def is_float(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    is_bool = is_nested_int = is_int

    def _graph_repr(self) -> str:
        return repr(self.number)

    __str__ = _graph_repr


class GivenNumber(float):
    """A float that a recording is given, with the slot of the tape that later calls find it in."""

    slot: int


class Number(torch.SymFloat):
    """A Python float whose value is an input of the compiled program.

    It passes through PyTorch's C++ as a ``torch.SymFloat``. Arithmetic gives a number; a use of the
    value itself (a comparison, ``float``, ``math.sqrt``) is written down as a guard.
    """

    def __init__(self, observer: Any, slot: int):
        super().__init__(_Node(self))
        self.observer, self.slot = observer, slot

    @property
    def value(self) -> float:
        """Return the value in the call that is observed."""
        return _tape_of(self).env[self.slot]

    def __repr__(self) -> str:
        return repr(float(self))

    def is_integer(self) -> bool:
        return float(self).is_integer()


def _tape_of(number: Number) -> Any:
    if number.observer.is_over:
        raise NotTraceableError(
            "a number of an optimizer was kept by its step under torch_jax.jit(pure=True), and "
            "used afterwards: keep float(number), or drop pure=True"
        )
    return number.observer.tape


def _fixed(number: Number, function: Callable[..., Any], *others: Any) -> Any:
    """Return the value of ``function`` in this call, which later calls must find again."""
    tape = _tape_of(number)
    slots = (number.slot, *(_slot(number.observer, other) for other in others))
    slot, outcome = tape.once(function, slots)
    tape.expect(getattr(function, "__name__", "value"), slot, slots)
    return outcome


def _slot(observer: Any, value: Any) -> int:
    return value.slot if isinstance(value, Number) else observer.tape.literal(value)


def _arithmetic(function: Callable[..., Any]) -> Any:
    """Return a function of numbers that gives a number."""

    def call(*operands: Any) -> Any:
        if any(not isinstance(x, Number | float | int) for x in operands):
            return NotImplemented
        first = next(x for x in operands if isinstance(x, Number))
        slots = tuple(_slot(first.observer, x) for x in operands)
        slot, value = _tape_of(first).once(function, slots)
        if type(value) is float:
            return Number(first.observer, slot)
        first.observer.tape.expect("a value", slot)
        return value

    return call


def _comparison(function: Callable[..., Any]) -> Any:
    """Return a comparison, whose outcome is guarded."""

    def compare(self: Any, other: Any) -> Any:
        if not isinstance(other, Number | float | int):
            return NotImplemented
        return _fixed(self, function, other)

    return compare


_VALUES: tuple[Any, ...] = (float, int, math.trunc, math.floor, math.ceil, bool)
_OF_VALUES: tuple[Any, ...] = (hash, str, round, format)
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _forward = _arithmetic(getattr(operator, _name))
    setattr(Number, f"__{_name}__", _forward)
    setattr(Number, f"__r{_name}__", lambda a, b, forward=_forward: forward(b, a))
for _name in ("neg", "pos", "abs"):
    setattr(Number, f"__{_name}__", _arithmetic(getattr(operator, _name)))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Number, f"__{_name}__", _comparison(getattr(operator, _name)))
for _function in _VALUES:
    setattr(Number, f"__{_function.__name__}__", functools.partialmethod(_fixed, _function))
for _function in _OF_VALUES:
    setattr(Number, f"__{_function.__name__}__", lambda a, *args, of=_function: of(float(a), *args))


def _number_in(value: Any) -> Number | None:
    return value if isinstance(value, Number) else getattr(value.node, "number", None)


def given(value: Any) -> GivenNumber:
    """Return for a recording the number that a kernel gets, a ``Number`` or a bare ``SymFloat``."""
    if (number := _number_in(value)) is None:
        raise TypeError(f"{value!r} is a symbolic number of another program")
    found = GivenNumber(number.value)
    found.slot = number.slot
    return found


def fixed(value: Any) -> Any:
    """Return a number as a float that later calls must find again."""
    number = _number_in(value)  # the truth of a number would be guarded
    return float(value if number is None else number)


def guarded(passes: Callable[..., bool], values: list[Any]) -> bool | None:
    """Return whether numbers pass a check, made again by later calls; None: of another program."""
    known = [number for number in map(_number_in, values) if number is not None]
    return _fixed(known[0], passes, *known[1:]) if len(known) == len(values) else None


def holds(passes: Callable[..., bool], value: Any) -> bool | None:
    """Return whether a number passes; of an observed one, later calls must find the same answer."""
    return guarded(passes, [value]) if isinstance(value, torch.SymFloat) else passes(value)


def plain(value: Any) -> Any:
    """Return arguments with every number replaced by its value in this call, unguarded."""
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, torch.SymFloat):
        number = _number_in(value)
        return 1.0 if number is None else number.value
    return value
