"""The tape: what a traced function did on the host, to be done again at each call.

A step has a host side that XLA cannot run: a learning rate is read and multiplied, a counter on
the CPU goes up, a scheduler moves on. While a function is traced these are done once and written
down; a later call of the compiled program plays the tape first. Its numbers and CPU tensors then
become inputs of the program, so that none of them is baked into it.

Where Python itself needs a number – ``if weight_decay != 0`` – the outcome is written down too. A
later call with another outcome raises :class:`Changed`, and the function is traced again.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
import torch

from torch_jax.core.tracers import NotTraceableError
from torch_jax.core.x64 import x64


class Changed(Exception):
    """Something that the trace relied on is different now; the message says what.

    ``places`` are those of floats that changed.
    """

    def __init__(self, message: str, places: Iterable[Any] = ()):
        super().__init__(message)
        self.places = tuple(places)


# A sum is another one at each call, as its terms are; a remainder may well be the same.
_ONE_TO_ONE = (operator.add, operator.sub, operator.mul, operator.neg, operator.pos)


class Step(NamedTuple):
    """One thing that is done on the host: ``env[slot] = function(*(env[i] for i in operands))``."""

    slot: int
    function: Callable[..., Any]
    operands: tuple[int, ...]
    needed: bool  # it changes something that was there before, or checks: it is never left out
    save: Callable[..., Callable[[], None]] | None  # of the operands; what it gives undoes the step


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
        """Like :meth:`record`, done now, but not again where the same was asked before."""
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
        """The value of a slot is expected, and so are those that it was added up from."""
        self.pinned.add(slot)
        for step in self.steps:
            if step.slot == slot and step.function in _ONE_TO_ONE:
                for operand in step.operands:
                    self.pin(operand)

    def forget(self) -> None:
        """Ask again for what was read, because something may have written it."""
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
        """What saves the state of things other than tensors that the steps change."""
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
        """Where a check may fail after something was changed already, it is changed back."""
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


# --- numbers --------------------------------------------------------------------------------------


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


def _tape_of(number: Any) -> Tape:
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


class _Expect:
    """A step that raises where an outcome is not the one of the trace."""

    def __init__(self, what: str, outcome: Any):
        self.what, self.outcome = what, outcome

    def __call__(self, outcome: Any, *operands: Any) -> None:
        if outcome != self.outcome or type(outcome) is not type(self.outcome):
            numbers = ", ".join(map(repr, operands))
            raise Changed(f"{self.what}({numbers}) was {self.outcome!r}, now it is {outcome!r}")


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


def settled(value: Any) -> Any:
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
