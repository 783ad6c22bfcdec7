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

from torch_jax.traced import NotTraceableError
from torch_jax.x64 import x64


class Changed(Exception):
    """Something that the trace relied on is different now; the message says what.

    ``places`` are those of floats that changed.
    """

    def __init__(self, message: str, places: Iterable[Any] = ()):
        super().__init__(message)
        self.places = tuple(places)


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
        return self.tape.env[self.slot]

    @property
    def tape(self) -> Tape:
        """The tape of this trace."""
        if self.capture.is_over:
            raise NotTraceableError(
                "a number of a function under torch_jax.jit was kept in an object or function that "
                "it made, and used afterwards: keep float(number), or return it"
            )
        return self.capture.tape

    def on_device(self) -> Any:
        """The number as a traced array, a new input of the program where it has been none."""
        if self.array is not None:
            return self.array
        self.tape  # noqa: B018, raises where the trace is over
        return self.capture.number(self.slot)

    def _fixed(self, function: Callable[..., Any], *others: Any) -> Any:
        """The value of ``function`` in this trace, which later calls must find again."""
        self.value  # noqa: B018, raises where the host does not know it
        tape = self.tape
        slots = (self.slot, *(_slot(self.capture, other) for other in others))
        slot, outcome = tape.once(function, slots)
        tape.expect(getattr(function, "__name__", "value"), slot, slots)
        return outcome

    def __float__(self) -> float:
        return self._fixed(_the_value)

    def __bool__(self) -> bool:
        return self._fixed(bool)

    def __int__(self) -> int:
        return self._fixed(int)

    __trunc__ = __int__

    def __floor__(self) -> int:
        return self._fixed(math.floor)

    def __ceil__(self) -> int:
        return self._fixed(math.ceil)

    def __round__(self, digits: int | None = None) -> Any:
        return round(float(self), digits)

    def __repr__(self) -> str:
        return repr(float(self)) if self.array is None else f"<number on {self.array.aval}>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __hash__(self) -> int:
        return hash(float(self))

    def is_integer(self) -> bool:
        """Whether the value has no fraction."""
        return float(self).is_integer()


def is_or_holds_number(value: Any) -> bool:
    """Whether a value, or an element of a tuple, is a :class:`Number`."""
    values = value if isinstance(value, tuple) else (value,)
    return any(isinstance(one, Number) for one in values)


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


def _slot(capture: Any, value: Any) -> int:
    if isinstance(value, Number):
        return value.slot
    known = capture.literals
    key = (type(value), value)
    if key not in known:
        known[key] = capture.tape.constant(value)
    return known[key]


def _device(value: Any) -> Any:
    return value.on_device() if isinstance(value, Number) else value


def _arithmetic(function: Callable[..., Any], on_device: Callable[..., Any]) -> Any:
    """A function of numbers that gives a number."""

    def call(*operands: Any) -> Any:
        numbers = [x for x in operands if isinstance(x, Number)]
        if any(not isinstance(x, Number | float | int) for x in operands):
            return NotImplemented
        capture = numbers[0].capture
        if any(x.array is not None for x in numbers):
            with x64():
                return Number(capture, array=on_device(*map(_device, operands)))
        slot, value = numbers[0].tape.once(function, tuple(_slot(capture, x) for x in operands))
        return Number(capture, slot) if type(value) is float else value

    return call


def _comparison(function: Callable[..., Any]) -> Any:
    """A comparison, whose outcome is guarded."""

    def compare(self: Number, other: Any) -> Any:
        if not isinstance(other, Number | float | int):
            return NotImplemented
        if isinstance(other, Number):
            other.value  # noqa: B018, raises where the host does not know it
        return self._fixed(function, other)

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
for _name, (_function, _array) in _BINARY.items():
    _forward = _arithmetic(_function, _array)
    setattr(Number, f"__{_name}__", _forward)
    setattr(Number, f"__r{_name}__", _swapped(_forward))
for _name, _function in _UNARY.items():
    setattr(Number, f"__{_name}__", _arithmetic(_function, _function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Number, f"__{_name}__", _comparison(getattr(operator, _name)))

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
