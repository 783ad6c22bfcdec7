"""The values that a JAX function reads beside its arguments, as a key that differs if one differs.

A function is its code, and the values that its code can reach: defaults, variables of its closure,
globals that it names, and the values that these hold – functions, containers, objects. Numbers and
texts count by value, arrays of JAX by identity since they cannot be written, NumPy's by their
content. Definitions of libraries count by identity. So ``lambda x: x * scale``, made at each call,
is the same function for the same scale, and another one for another. Two traces count as one if
their equations are the same over the same constants.

Python's ``pickle`` walks over the values, with rules of its own for those that this file knows. Of
the bytes that it writes only a digest is kept.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import pickle
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import torch

from torch_jax._private.jaxprs import core, mentions
from torch_jax.budgets import ELEMENTS_OF_A_SMALL_CONSTANT, OBJECTS_OF_A_FUNCTION
from torch_jax.core.user_code import is_library
from torch_jax.dispatch.call_jax import Given


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


def owner_of(function: Any) -> Any:
    """Return an object that two makings of a function share: its code, or the object itself."""
    inner = getattr(function, "__func__", function)  # each access makes a new method
    return getattr(inner, "__code__", inner)


def state_of(function: Any, static: Iterable[Any] = ()) -> tuple | None:
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
        return _Walk(function, static).state()
    except (NotUnderstood, RecursionError, TypeError, pickle.PicklingError):
        return None


def same_program(closed: Any) -> tuple:
    """Return a key that is equal for jaxprs of the same equations over the same constants.

    >>> one, other = (jax.make_jaxpr(lambda x: x * 2)(1.0) for _ in range(2))
    >>> same_program(one) == same_program(other)
    True
    >>> same_program(one) == same_program(jax.make_jaxpr(lambda x: x * 3)(1.0))
    False
    """
    calls_back = mentions(closed.jaxpr, "callback")  # it may write to objects of its own
    return (not calls_back and state_of(None, (closed,))) or (Same(closed),)


def identities_of(function: Callable[..., Any], static: Iterable[Any]) -> tuple[Same, ...]:
    """Return the objects that a function can reach and write, as :func:`state_of` finds them."""
    met = _Walk(function, static).met
    return tuple(Same(value) for value in met if not isinstance(value, _UNWRITTEN))


def holds_arrays(state: tuple) -> bool:
    """Return whether a state keeps arrays alive."""
    return any(type(one) is Same and isinstance(one.value, jax.Array) for one in state)


_BY_VALUE = int, bool, str, bytes, float, type(None)
_BY_EQUALITY = (
    jax.sharding.Mesh, jax.sharding.Sharding, jax.sharding.PartitionSpec, jax.Device, Given
)  # fmt: skip
_BY_IDENTITY = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.MethodWrapperType, types.GetSetDescriptorType, types.MemberDescriptorType, np.ufunc,
    enum.Enum, np.dtype, type(NotImplemented), type(...), torch.device, torch.dtype, types.CodeType,
    types.ModuleType, jax.Array,
    type(jax.jit(abs)),  # JAX itself traces such a function once, even if its closure changes
)  # fmt: skip
_AS_PICKLED = complex, range, slice, re.Pattern, np.ndarray, np.generic
_CONTAINERS = (
    tuple, list, dict, set, frozenset, types.FunctionType, types.MethodType, functools.partial,
    types.CellType,
)  # fmt: skip
_PLAIN: Any = str, bytes, int, float, tuple
_UNWRITTEN = types.FunctionType, types.MethodType, functools.partial, type, tuple
_RUNNING = types.GeneratorType, types.CoroutineType, torch.Tensor, jax.core.Tracer
_IS_HEAP_TYPE = 1 << 9  # made by a ``class`` statement, or as such
_OF_CLASSES = frozenset(
    """__dict__ __weakref__ __module__ __doc__ __qualname__ __annotations__ __abstractmethods__
    _abc_impl __static_attributes__ __firstlineno__ __dataclass_params__ __dataclass_fields__
    __match_args__ __orig_bases__ __parameters__ __slots__ __slotnames__ __hash__""".split()
)


class _Walk(pickle.Pickler):
    """One walk over the values that a function reaches."""

    def __init__(self, function: Any, static: Iterable[Any]) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        super().__init__(types.SimpleNamespace(write=self._digest.update), protocol=5)
        self._owner = owner_of(function)
        self._kept: dict[int, tuple[int, Any]] = {}
        self.met: list[Any] = []  # the values that count by what they hold
        self.dump((function, *static))

    def state(self) -> tuple:
        """Return the key: a digest, and the objects that it names by numbers."""
        return self._digest.digest(), *(held for _, held in self._kept.values())

    def persistent_id(self, value: Any) -> Any:
        """Return a number for a value that does not count by what it holds; pickle asks first."""
        kind: Any = type(value)
        way = _way_of(kind)
        if way is _BY_VALUE:
            return None
        if way is _RUNNING:
            raise NotUnderstood
        if way is _BY_EQUALITY:
            return self._number(value, value)
        if way is _BY_IDENTITY or way is not _CONTAINERS and _is_of_library(value):
            return self._number(value, Same(value))
        self.met.append(value)
        if len(self.met) > OBJECTS_OF_A_FUNCTION:
            raise NotUnderstood
        return None

    def reducer_override(self, value: Any) -> Any:
        """Return the parts of a value that is no plain container, in the form that pickle asks for.

        They are its state, which is written when pickle knows the value by a number already: it may
        hold itself.
        """
        kind = type(value)
        if isinstance(value, _AS_PICKLED):
            return NotImplemented
        if kind is types.FunctionType:
            parts = self._of_function(value)
        elif kind in _PARTS:
            parts = _PARTS[kind](value)
        else:
            parts = self._of_class(value) if isinstance(value, type) else _of_instance(value)
        return object, (), (kind, *parts)

    def _number(self, value: Any, held: Any) -> Any:
        if value is self._owner:
            return "owner"
        return self._kept.setdefault(id(value), (len(self._kept), held))[0]

    def _of_function(self, function: types.FunctionType) -> Iterable[Any]:
        code = function.__code__
        yield from (code, function.__defaults__, function.__kwdefaults__, function.__closure__)
        yield vars(function).get("__wrapped__")
        if not is_library(code.co_filename):
            names, known = names_of(code)[0], function.__globals__
            yield from ((n, self._read(known[n], code)) for n in sorted(names) if n in known)

    def _read(self, value: Any, code: types.CodeType) -> Any:
        """Return a global; of a module of the user's also its attributes that code may read."""
        if type(value) is not types.ModuleType or _is_library_module(value):
            return value
        read = sorted(names_of(code)[1] & vars(value).keys())
        return value, *((name, self._read(vars(value)[name], code)) for name in read)

    def _of_class(self, kind: type) -> Iterable[Any]:
        """Yield the parts of a class of the user's, whose attributes may be replaced."""
        yield self._number(kind, Same(kind))
        for name, value in sorted(vars(kind).items()):
            if name in _OF_CLASSES:
                continue
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            yield name, (value.fget, value.fset) if isinstance(value, property) else value
        yield kind.__bases__


@functools.cache
def _way_of(kind: type) -> Any:
    """Return how values of a class count: one of the tables above, None if others decide."""
    for kinds in (_BY_VALUE, _CONTAINERS):
        if kind in kinds:
            return kinds
    if kind is object:  # which holds nothing
        return _BY_IDENTITY
    tables = _RUNNING, _BY_EQUALITY, _BY_IDENTITY
    return next((table for table in tables if issubclass(kind, table)), None)


def _is_of_library(value: Any) -> bool:
    """Return whether a value is a class of a library's, or an object that names its module."""
    if isinstance(value, type):
        return _is_library_module(sys.modules.get(value.__module__))
    module = getattr(value, "__dict__", {}).get("__module__")  # such as jax.nn.relu
    return callable(value) and _is_library_module(sys.modules.get(str(module)))


def _of_instance(value: Any) -> Iterable[Any]:
    """Yield the elements of an object, and its attributes."""
    if isinstance(value, dict | types.MappingProxyType):
        yield tuple(value.items()), getattr(value, "default_factory", None)
    elif isinstance(value, list | set | frozenset):
        yield tuple(value)
    elif (plain := next((base for base in _PLAIN if isinstance(value, base)), None)) is not None:
        yield plain.__getnewargs__(value)
    elif not type(value).__flags__ & _IS_HEAP_TYPE:
        raise NotUnderstood
    held: Any = object.__getstate__(value)  # a dict; a pair of it and of that of the slots
    for one in held if isinstance(held, tuple) else (held,):
        yield tuple((one or {}).items())


def _contents(cell: types.CellType) -> tuple:
    try:
        return (cell.cell_contents,)
    except ValueError:  # a variable that has no value yet
        return ()


def _constant(value: Any) -> Any:
    """Return a constant; a small array of JAX as one of NumPy, which counts by its bytes."""
    is_large = getattr(value, "size", 1) > ELEMENTS_OF_A_SMALL_CONSTANT
    if is_large or not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return value
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)
    return value if is_key else np.asarray(value)


# The values that an object of a class holds; of programs, without the names of variables.
_PARTS: dict[type, Callable[[Any], tuple]] = {
    types.MethodType: lambda method: (method.__func__, method.__self__),
    functools.partial: lambda call: (call.func, call.args, call.keywords),
    types.CellType: _contents,
    weakref.ReferenceType: lambda reference: (reference(),),
    core.ClosedJaxpr: lambda closed: (closed.jaxpr, *map(_constant, closed.consts)),
    core.Jaxpr: lambda jaxpr: (jaxpr.constvars, jaxpr.invars, jaxpr.eqns, jaxpr.outvars),
    core.JaxprEqn: lambda eqn: (
        *(eqn.primitive, eqn.params, eqn.invars, eqn.outvars),
        type(eqn.ctx),  # of ours, where 64-bit types are on
    ),
}


def _is_library_module(module: types.ModuleType | None) -> bool:
    """Return whether a module is Python's, or was installed; a missing one is the user's."""
    if module is None:
        return False
    file = vars(module).get("__file__")  # without calling a __getattr__ of the module
    if file is None:
        return module.__name__ in sys.builtin_module_names
    return is_library(file)


# --- names in bytecode ----------------------------------------------------------------------------

_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
_known: weakref.WeakKeyDictionary[types.CodeType, tuple[set[str], set[str]]]
_known = weakref.WeakKeyDictionary()


def names_of(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the globals that code and the functions inside it read, and all names and texts in it.

    These may be attributes of a module: ``module.scale``, ``getattr(module, "scale")``.

    >>> def f(x): return scale * x.weight + getattr(x, "bias", 0)
    >>> globals, names = names_of(f.__code__)
    >>> sorted(globals), sorted(names)
    (['getattr', 'scale'], ['bias', 'getattr', 'scale', 'weight'])
    """
    if (found := _known.get(code)) is None:
        globals = {one.argval for one in dis.get_instructions(code) if one.opname in _GLOBAL}
        names = {*code.co_names, *(text for text in code.co_consts if isinstance(text, str))}
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                globals |= names_of(inner)[0]
                names |= names_of(inner)[1]
        found = _known[code] = globals, names
    return found
