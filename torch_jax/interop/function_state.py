"""The values that a JAX function reads beside its arguments, as a key that differs if one differs.

A function is its code, and the values that its code can reach: defaults, variables of its closure,
globals that it names, and the values that these hold – functions, containers, objects. Numbers and
texts count by value, arrays of JAX by identity since they cannot be written, NumPy's by their
content. Definitions of libraries count by identity. So ``lambda x: x * scale``, made at each call,
is the same function for the same scale, and another one for another.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import jax
import numpy as np
import torch

from torch_jax.budgets import OBJECTS_OF_A_FUNCTION
from torch_jax.core.user_code import is_library
from torch_jax.dispatch.call_jax import Given
from torch_jax.interop.bytecode import Names, names_of


class NotUnderstood(Exception):
    """A function reaches something that may change without being seen, such as a generator."""


class Same:
    """An object that counts by identity; it is kept, so that no other takes its address."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.value is self.value


def owner_of(function: Callable[..., Any]) -> Any:
    """Return an object that two makings of a function share: its code, or the object itself."""
    inner = getattr(function, "__func__", function)  # each access makes a new method
    return getattr(inner, "__code__", inner)


def state_of(function: Callable[..., Any], static: Iterable[Any] = ()) -> tuple | None:
    """Return a key of a function and of all that it can read; None where this is unknown.

    ``static`` are static arguments of the call.

    It does not hold the function's :func:`owner_of`, of which it is a key.

    >>> def times(n):
    ...     return lambda x: x * n
    >>> state_of(times(2)) == state_of(times(2)), state_of(times(2)) == state_of(times(3))
    (True, False)
    >>> state_of(lambda x: x * next(iterator)) is None
    False
    """
    try:
        return tuple(_Walk(function, static).found)
    except (NotUnderstood, RecursionError):
        return None


def identities_of(function: Callable[..., Any], static: Iterable[Any]) -> tuple[Same, ...]:
    """Return the objects that a function can reach and write, as :func:`state_of` finds them."""
    walk = _Walk(function, static)
    written = [value for _, value in walk.met.values() if not isinstance(value, _UNWRITTEN)]
    return tuple(map(Same, (*walk.cells, *written)))


def holds_arrays(state: tuple) -> bool:
    """Return whether a state keeps arrays alive."""
    return any(type(one) is Same and isinstance(one.value, jax.Array) for one in state)


_BY_VALUE = frozenset(
    (int, bool, str, bytes, type(None), type(Ellipsis), range, torch.dtype, Given)
)
_BY_EQUALITY = jax.sharding.Mesh, jax.sharding.Sharding, jax.sharding.PartitionSpec, jax.Device
_BY_IDENTITY = (
    type, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.MethodWrapperType, types.GetSetDescriptorType, types.MemberDescriptorType, np.ufunc,
    enum.Enum, np.dtype, type(NotImplemented), torch.device,
    type(jax.jit(abs)),  # JAX itself traces such a function once, even if its closure changes
)  # fmt: skip


class _Walk:
    """One walk over the values that a function reaches: their key, and the values met."""

    def __init__(self, function: Callable[..., Any], static: Iterable[Any]) -> None:
        self.found: list[Any] = []
        self._owner = owner_of(function)
        self.cells: list[types.CellType] = []  # variables of closures
        self.met: dict[int, tuple[int, Any]] = {}
        for value in (function, *static):
            self.add(value)

    def add(self, value: Any) -> None:
        """Add a value to the key."""
        kind = type(value)
        if kind in _BY_VALUE:
            self.found += kind, value
        elif kind is float or kind is complex:
            self.found += kind, repr(value)  # -0.0 is not 0.0, and nan is nan
        elif isinstance(value, jax.core.Tracer):
            raise NotUnderstood
        elif issubclass(kind, jax.Array):
            self._add_same(value)
        else:
            self._add_object(kind, value)

    def _add_object(self, kind: type, value: Any) -> None:
        """Add a value that may hold others; one that was met before is named by its number."""
        known = self.met.get(id(value))
        if known is not None:
            self.found += "met", known[0]
            return
        if len(self.met) > OBJECTS_OF_A_FUNCTION:
            raise NotUnderstood
        self.met[id(value)] = len(self.met), value
        if kind is types.FunctionType:
            self._add_function(value)
        elif kind in _PARTS:
            self._add_all(kind, _PARTS[kind](value))
        elif isinstance(value, _BY_EQUALITY):
            self.found += kind, value
        elif kind is types.ModuleType or kind is object:  # an object holds nothing
            self._add_same(value)
        elif issubclass(kind, (tuple, list)):
            self._add_all(kind, value)
            self._add_attributes(value)
        elif issubclass(kind, (dict, types.MappingProxyType)):
            self._add_all(kind, chain.from_iterable(value.items()))
            self._add_attributes(value)
            self._add_all("default", [getattr(value, "default_factory", None)])
        elif kind in (set, frozenset):
            self._add_set(kind, value)
        elif isinstance(value, np.ndarray | np.generic):
            self._add_numpy(value)
        elif isinstance(value, type) and not _is_of_library(value):
            self._add_class(value)
        elif isinstance(value, _BY_IDENTITY):
            self._add_same(value)
        else:
            self._add_instance(kind, value)

    def _add_same(self, value: Any) -> None:
        self.found.append("owner" if value is self._owner else Same(value))

    def _add_all(self, kind: Any, values: Iterable[Any]) -> None:
        values = tuple(values)
        self.found += kind, len(values)
        for value in values:
            self.add(value)

    def _add_set(self, kind: type, values: Any) -> None:
        if not all(type(v) in _BY_VALUE for v in values):
            raise NotUnderstood
        self.found += kind, frozenset((type(v), v) for v in values)

    def _add_numpy(self, value: Any) -> None:
        if value.dtype.hasobject:
            raise NotUnderstood
        data: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        digest = hashlib.blake2b(data, digest_size=16).digest()
        self.found += type(value), value.dtype.str, value.shape, digest

    def _add_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self._add_same(code)
        for value in (function.__defaults__, function.__kwdefaults__):
            if value is not None:
                self.add(value)
        for cell in function.__closure__ or ():
            self.cells.append(cell)
            self._add_all("cell", _contents(cell))
        if "__wrapped__" in function.__dict__:
            self.add(function.__dict__["__wrapped__"])
        if is_library(code.co_filename):
            return
        names, known = names_of(code), function.__globals__
        for name in sorted(names.globals):
            if name in known:
                self.found.append(name)
                self._add_global(known[name], names)

    def _add_global(self, value: Any, names: Names) -> None:
        """Add a global; for a module of the user's, also its attributes that the code may read."""
        self.add(value)
        if type(value) is types.ModuleType and not _is_library_module(value):
            for name in sorted(names.attributes & value.__dict__.keys()):
                self.found.append(name)
                self._add_global(value.__dict__[name], names)

    def _add_class(self, kind: type) -> None:
        """Add a class of the user's, whose attributes and methods may be replaced."""
        self.found.append(Same(kind))
        for name, value in sorted(vars(kind).items()):
            if name in _OF_CLASSES:
                continue
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            if isinstance(value, property):
                value = (value.fget, value.fset)
            self.found.append(name)
            self.add(value)
        for base in kind.__bases__:
            self.add(base)

    def _add_instance(self, kind: type, value: Any) -> None:
        """Add an object by its class and its attributes."""
        module = getattr(value, "__dict__", {}).get("__module__")
        if callable(value) and _is_library_module(sys.modules.get(str(module))):
            self._add_same(value)  # such as jax.nn.relu, which names its own module
            return
        if not kind.__flags__ & _IS_HEAP_TYPE or isinstance(value, _RUNNING):
            raise NotUnderstood
        if not _is_of_library(kind):
            self.add(kind)
        self.found.append(Same(kind))
        self._add_attributes(value)

    def _add_attributes(self, value: Any) -> None:
        held: Any = object.__getstate__(value)  # a dict; a pair of it and of that of the slots
        for one in held if isinstance(held, tuple) else (held,):
            self._add_all("attributes", chain.from_iterable((one or {}).items()))


_UNWRITTEN = (
    types.FunctionType,
    types.MethodType,
    functools.partial,
    tuple,
    *_BY_IDENTITY,
    *_BY_EQUALITY,
)
_IS_HEAP_TYPE = 1 << 9  # made by a ``class`` statement, or as such
_RUNNING = (types.GeneratorType, types.CoroutineType, torch.Tensor)
_OF_CLASSES = frozenset(
    """__dict__ __weakref__ __module__ __doc__ __qualname__ __annotations__ __abstractmethods__
    _abc_impl __static_attributes__ __firstlineno__ __dataclass_params__ __dataclass_fields__
    __match_args__ __orig_bases__ __parameters__ __slots__ __slotnames__ __hash__""".split()
)


def _contents(cell: types.CellType) -> tuple:
    try:
        return (cell.cell_contents,)
    except ValueError:  # a variable that has no value yet
        return ()


# The values that an object of a class holds.
_PARTS: dict[type, Callable[[Any], tuple]] = {
    types.MethodType: lambda method: (method.__func__, method.__self__),
    functools.partial: lambda call: (call.func, call.args, call.keywords),
    types.CellType: _contents,
    weakref.ReferenceType: lambda reference: (reference(),),
    slice: lambda cut: (cut.start, cut.stop, cut.step),
}


@functools.cache
def _is_of_library(kind: type) -> bool:
    """Return whether a class is defined by a library or by Python itself."""
    return _is_library_module(sys.modules.get(kind.__module__))


def _is_library_module(module: types.ModuleType | None) -> bool:
    """Return whether a module is Python's, or was installed; a missing one is the user's."""
    if module is None:
        return False
    file = vars(module).get("__file__")  # without calling a __getattr__ of the module
    if file is None:
        return module.__name__ in sys.builtin_module_names
    return is_library(file)
