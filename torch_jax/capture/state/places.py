"""Places in Python's state: where a value stands, how it is read again, and how it is put back."""

from __future__ import annotations

import itertools
import operator
import random
import types
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

MISSING: Any = type("MISSING", (), {"__repr__": lambda self: "nothing"})()

PLAIN = (
    int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size,
    types.BuiltinFunctionType, types.MethodDescriptorType, type(Ellipsis), range, slice,
)  # fmt: skip


class Item:
    """A place: an owner, a key, and what stood there when it was first met.

    ``kind`` is one of

    - ``dict``: an attribute in an object's ``__dict__``, a global, or an element of a dict;
    - ``element``: an element of a dict, where the others are other places;
    - ``attr``: what ``getattr`` gives: a slot, or a function's defaults;
    - ``class``: what a class and its bases say of a name, no descriptor asked;
    - ``type``: the class of an object;
    - ``cell``: a closure's variable;
    - ``contents``: all of a list, set or dict;
    - ``keys``: the names of all attributes of an object;
    - ``bytes``: all of a NumPy array or a buffer;
    - ``cache``: how much a cached function has cached;
    - ``state``: where an iterator or a generator of random numbers stands;
    - ``weak`` and ``context``: what a weak reference or a context variable refers to;
    - ``number``: the class of what stands in an object's ``__dict__`` or a closure's variable.
    """

    __slots__ = ("kind", "owner", "key", "value", "label", "read")

    def __init__(self, kind: str, owner: Any, key: Any, value: Any, label: str):
        self.kind, self.owner, self.key, self.value, self.label = kind, owner, key, value, label
        self.read = False

    @property
    def place(self) -> tuple:
        """What tells it from other places."""
        return self.kind, id(self.owner), self.key

    def now(self) -> Any:
        """What stands there now."""
        return read_place(self.kind, self.owner, self.key)


def _cell(cell: Any, _key: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return MISSING


def slot(owner: Any, key: str) -> Any:
    """A slot's value, or a function's defaults; an object's own ``__getattr__`` is not asked."""
    try:
        return object.__getattribute__(owner, key)
    except AttributeError:
        return MISSING


def _state(owner: Any, _key: Any) -> str:
    if isinstance(owner, random.Random):
        return repr(owner.getstate())
    if isinstance(owner, np.random.Generator):
        return repr(owner.bit_generator.state)
    if isinstance(owner, types.GeneratorType):
        return repr(owner.gi_frame and owner.gi_frame.f_lasti)
    if isinstance(owner, itertools.count):
        return repr(owner)
    return repr(operator.length_hint(owner, -1))


def _contents(owner: Any, _key: Any) -> tuple:
    return (*owner.keys(), *owner.values()) if isinstance(owner, Mapping) else tuple(owner)


def on_class(kind: type, name: str) -> Any:
    """What a class or the first of its bases that knows the name says of it."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return MISSING


def _class_there(owner: Any, key: Any) -> Any:
    return type(_cell(owner, key) if isinstance(owner, types.CellType) else owner.get(key))


_READERS: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda owner, key: owner.get(key, MISSING),
    "element": lambda owner, key: owner.get(key, MISSING),
    "attr": slot,
    "class": on_class,
    "type": lambda owner, key: type(owner),
    "cell": _cell,
    "contents": _contents,
    "keys": lambda owner, key: tuple(owner),
    "bytes": lambda owner, key: bytes(owner) if isinstance(owner, bytearray) else owner.tobytes(),
    "cache": lambda owner, key: owner.cache_info()[1:],
    "state": _state,
    "weak": lambda owner, key: owner(),
    "context": lambda owner, key: owner.get(MISSING),
    "number": _class_there,
}


KINDS = tuple(_READERS)


def read_place(kind: str, owner: Any, key: Any) -> Any:
    """What stands at a place."""
    return _READERS[kind](owner, key)


def put(item: Item, value: Any) -> None:
    """Make ``value`` stand at the item's place."""
    owner, key = item.owner, item.key
    if item.kind in ("dict", "element"):
        owner.pop(key, None) if value is MISSING else owner.__setitem__(key, value)
    elif item.kind in ("attr", "class"):
        delattr(owner, key) if value is MISSING else setattr(owner, key, value)
    elif item.kind == "type":
        owner.__class__ = value
    elif item.kind == "cell":
        owner.cell_contents = value
    elif item.kind == "context":
        owner.set(value)
    elif item.kind == "contents":
        _put_contents(owner, value)


def _put_contents(owner: Any, value: tuple) -> None:
    if isinstance(owner, dict):
        half = len(value) // 2
        pairs = dict(zip(value[:half], value[half:], strict=True))
        owner.clear()
        owner.update(pairs)
    elif isinstance(owner, list):
        owner[:] = value
    elif isinstance(owner, set | deque):
        owner.clear()
        (owner.extend if isinstance(owner, deque) else owner.update)(value)


def same(a: Any, b: Any) -> bool:
    """Whether two values are interchangeable: one object, or plain, of one type and equal."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float | complex):
        return repr(a) == repr(b)  # nan, and the sign of zero
    if isinstance(a, types.MethodType):
        return a.__func__ is b.__func__ and a.__self__ is b.__self__
    return isinstance(a, PLAIN) and bool(a == b)


def numpy_state() -> bytes:
    """The state of NumPy's global generator."""
    state: Any = np.random.get_state()
    return state[1].tobytes() + repr(state[2:]).encode()
