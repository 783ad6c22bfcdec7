"""Python numbers whose values are inputs of a program that is being traced.

A :class:`Number` is a float and an :class:`Integer` an int that each call of the program reads
anew. Their arithmetic is written on the tape of the trace (``capture.tape``); what needs the value
itself is written down as a guard, so that nothing computed from it can go stale.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch

from torch_jax.core.tracers import NotTraceableError
from torch_jax.core.x64 import x64


class _Node:
    """What PyTorch's C++ sees of a :class:`Number`; it comes to kernels as ``SymFloat(node)``."""

    def __init__(self, number: Number):
        self.number = number

    def guard_float(self, _file: str, _line: int) -> float:
        """C++ wants a plain float: its value is fixed, and guarded."""
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


class Number(torch.SymFloat):
    """A Python float whose value is an input of the compiled program.

    It passes through PyTorch's C++ as a ``torch.SymFloat``. Arithmetic stays a number; what needs
    the value itself (a comparison, ``float``, ``math.sqrt``) is written down as a guard.

    Either the tape knows it (``slot``), or the device does (``array``): then Python cannot see it.
    """

    def __init__(self, capture: Any, slot: int = -1, array: Any = None):
        super().__init__(_Node(self))
        self.capture, self.slot, self.array = capture, slot, array

    @property
    def value(self) -> float:
        """The value in this trace."""
        if self.array is not None:
            raise self.capture.needs_value(self.array)
        return _tape_of(self).env[self.slot]

    def on_device(self) -> Any:
        """The number as a traced array, a new input of the program where it has been none."""
        if self.array is not None:
            return self.array
        _tape_of(self)
        return self.capture.number(self.slot)

    def __repr__(self) -> str:
        return repr(float(self)) if self.array is None else f"<number on {self.array.aval}>"

    def is_integer(self) -> bool:
        """Whether the value has no fraction."""
        return float(self).is_integer()


class Integer:
    """A Python int that is read anew at each call of the compiled program.

    Arithmetic stays an integer, or becomes a :class:`Number`; what needs the value itself is
    written down as a guard. PyTorch does not take it for a number: what gives it to PyTorch is
    traced for each value.
    """

    def __init__(self, capture: Any, slot: int):
        self.capture, self.slot, self.array = capture, slot, None

    @property
    def value(self) -> int:
        """The value in this trace."""
        return _tape_of(self).env[self.slot]

    def on_device(self) -> Any:
        """The integer as a traced array of a float."""
        return number_of(self.capture, *_tape_of(self).once(float, (self.slot,))).on_device()

    def __index__(self) -> int:
        return _fixed(self, operator.index)

    def __repr__(self) -> str:
        return repr(int(self))


def number_of(capture: Any, slot: int, value: Any) -> Any:
    """What stands for the float or int in a slot while it is traced; other values are guarded."""
    if type(value) is float:
        return Number(capture, slot)
    if type(value) is int:
        return Integer(capture, slot)
    capture.tape.expect("a value", slot)
    return value


NUMBERS = (Number, Integer)


def _tape_of(number: Any) -> Any:
    if number.capture.is_over:
        raise NotTraceableError(
            "a number of a function under torch_jax.jit was kept in an object or function that "
            "it made, and used afterwards: keep float(number), or return it"
        )
    return number.capture.tape


def _fixed(number: Any, function: Callable[..., Any], *others: Any) -> Any:
    """The value of ``function`` in this trace, which later calls must find again."""
    number.value  # noqa: B018, raises where the host does not know it
    tape = _tape_of(number)
    slots = (number.slot, *(_slot(number.capture, other) for other in others))
    slot, outcome = tape.once(function, slots)
    tape.expect(getattr(function, "__name__", "value"), slot, slots)
    if function in _IDENTITIES[type(number)]:
        tape.pin(number.slot)
    return outcome


def _on_value(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: function(_fixed(self, _the_value), *args)


def _fixing(function: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda self: _fixed(self, function)


def is_or_holds_number(value: Any) -> bool:
    """Whether a value, or an element of a tuple, is a number of a trace."""
    values = value if isinstance(value, tuple) else (value,)
    return any(isinstance(one, NUMBERS) for one in values)


def _the_value(value: float) -> float:
    return value


_IDENTITIES: dict[type, tuple] = {
    Number: (float, _the_value),
    Integer: (int, float, operator.index, _the_value),
}


def _slot(capture: Any, value: Any) -> int:
    if isinstance(value, NUMBERS):
        return value.slot
    known = capture.literals
    key = (type(value), value)
    if key not in known:
        known[key] = capture.tape.constant(value)
    return known[key]


def _device(value: Any) -> Any:
    return value.on_device() if isinstance(value, NUMBERS) else value


def _arithmetic(function: Callable[..., Any], on_device: Callable[..., Any]) -> Any:
    """A function of numbers that gives a number."""

    def call(*operands: Any) -> Any:
        numbers: list[Any] = [x for x in operands if isinstance(x, NUMBERS)]
        if any(not isinstance(x, Number | Integer | float | int) for x in operands):
            return NotImplemented
        capture = numbers[0].capture
        if any(x.array is not None for x in numbers):
            with x64():
                return Number(capture, array=on_device(*map(_device, operands)))
        slots = tuple(_slot(capture, x) for x in operands)
        return number_of(capture, *_tape_of(numbers[0]).once(function, slots))

    return call


def _comparison(function: Callable[..., Any]) -> Any:
    """A comparison, whose outcome is guarded."""

    def compare(self: Any, other: Any) -> Any:
        if isinstance(self, Integer) and isinstance(other, torch.Tensor):
            raise TypeError("a number of a trace is compared with a tensor")  # not NotImplemented:
            # Python would say that they are not equal
        if not isinstance(other, Number | Integer | float | int):
            return NotImplemented
        if isinstance(other, NUMBERS):
            other.value  # noqa: B018, raises where the host does not know it
        return _fixed(self, function, other)

    return compare


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function(b, a)


_BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (operator.add, jnp.add),
    "sub": (operator.sub, jnp.subtract),
    "mul": (operator.mul, jnp.multiply),
    "truediv": (operator.truediv, jnp.divide),
    "floordiv": (operator.floordiv, jnp.floor_divide),
    "mod": (operator.mod, jnp.mod),
    "pow": (operator.pow, jnp.power),
}
_UNARY: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": operator.abs,
}
_VALUES: dict[str, Callable[..., Any]] = {
    "float": float,
    "int": int,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "bool": bool,
}
_OF_VALUES: dict[str, Callable[..., Any]] = {
    "hash": hash,
    "str": str,
    "round": round,
    "format": format,
}
for _class in NUMBERS:
    for _name, (_function, _array) in _BINARY.items():
        _forward = _arithmetic(_function, _array)
        setattr(_class, f"__{_name}__", _forward)
        setattr(_class, f"__r{_name}__", _swapped(_forward))
    for _name, _function in _UNARY.items():
        setattr(_class, f"__{_name}__", _arithmetic(_function, _function))
    for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(_class, f"__{_name}__", _comparison(getattr(operator, _name)))
    for _name, _function in _VALUES.items():
        setattr(_class, f"__{_name}__", _fixing(_function))
    for _name, _function in _OF_VALUES.items():
        setattr(_class, f"__{_name}__", _on_value(_function))

_maximum, _minimum = _arithmetic(max, jnp.maximum), _arithmetic(min, jnp.minimum)


def maximum(*values: Any) -> Any:
    """``max`` that keeps traced numbers traced.

    >>> maximum(1.0, 2.0)
    2.0
    """
    traced = len(values) == 2 and any(isinstance(v, Number) for v in values)
    return _maximum(*values) if traced else builtins.max(*values)


def minimum(*values: Any) -> Any:
    """``min`` that keeps traced numbers traced.

    >>> minimum(1.0, 2.0)
    1.0
    """
    traced = len(values) == 2 and any(isinstance(v, Number) for v in values)
    return _minimum(*values) if traced else builtins.min(*values)


def traced_array(value: Any) -> Any:
    """The traced array of a number as a kernel gets it: a ``Number`` or a bare ``SymFloat``."""
    number = value if isinstance(value, Number) else getattr(value.node, "number", None)
    if number is None:
        raise TypeError(f"{value!r} is a symbolic number of another program")
    return number.on_device()


def fixed(value: Any) -> Any:
    """A traced number as a float that later calls must find again."""
    number = getattr(value.node, "number", None)
    return float(value if number is None else number)


def guarded(passes: Callable[..., bool], values: list[Any]) -> bool | None:
    """Whether traced numbers pass a check, which later calls make again with theirs.

    None where only the device knows a number: it cannot be checked.
    """
    known: list[Any] = [
        v if isinstance(v, Number) else getattr(v.node, "number", None) for v in values
    ]
    if any(number is None or number.array is not None for number in known):
        return None
    return _fixed(known[0], passes, *known[1:])


def pinned_value(value: Any) -> Any:
    """A value that Python keeps: a number of a trace is fixed, and guarded."""
    return _fixed(value, _the_value) if isinstance(value, NUMBERS) else value


def plain(value: Any) -> Any:
    """Arguments with every traced number replaced by its value in this trace, unguarded."""
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, torch.SymFloat):
        number = getattr(value.node, "number", None)
        return 1.0 if number is None or number.array is not None else number.value
    return value
