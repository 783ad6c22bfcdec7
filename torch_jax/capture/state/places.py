"""Places in Python's state: where a value stands, how it is read again, and how it is put back.

Each kind of place is one class here. It says how to read and to write the value, how calls check
that the value is still the same (:meth:`Place.checks`), and what may stand there at all; no other
module asks for the kind.
"""

from __future__ import annotations

import itertools
import operator
import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any, TypeAlias

import numpy as np
import torch

from torch_jax.capture.state.code_that_ran import CodeThatRan

MISSING: Any = type("MISSING", (), {"__repr__": lambda self: "nothing"})()

PLAIN = (
    int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size,
    types.BuiltinFunctionType, types.MethodDescriptorType, type(Ellipsis), range, slice,
)  # fmt: skip

Check: TypeAlias = Callable[[], bool]
Address: TypeAlias = "tuple[type[Place], int, Any]"

_NOW: Any = object()  # as an argument: the value that stands there now
_cell_contents = attrgetter("cell_contents")


class Place:
    """A place: an owner, a key, and the value that stood there when the place was first met."""

    __slots__ = ("owner", "key", "value", "label", "is_read")

    can_vary = False  # a number that changes here may become an input of the program
    is_variable = False  # ``key`` is the name of a variable, which code may count up or down
    can_be_effect = True  # another value here afterwards is the function's doing

    def __init__(self, owner: Any, key: Any, label: str, value: Any = _NOW):
        self.owner, self.key, self.label = owner, key, label
        self.value = self.read(owner, key) if value is _NOW else value
        self.is_read = False  # whether what the function did may depend on the value

    @classmethod
    def at(cls, owner: Any, key: Any) -> Address:
        """What tells one place from all others."""
        return cls, id(owner), key

    @property
    def address(self) -> Address:
        """What tells this place from all others."""
        return type(self), id(self.owner), self.key

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """What stands at the place of such an owner and key."""
        raise NotImplementedError

    def now(self) -> Any:
        """What stands there now."""
        return self.read(self.owner, self.key)

    def put(self, value: Any) -> None:
        """Make ``value`` stand there.

        Ignored where a place cannot be written: the next call finds another value then, and is
        traced again.
        """

    def is_read_by(self, ran: CodeThatRan) -> bool:
        """Whether the code that ran may have read the value."""
        return self.is_read

    def objects(self, value: Any) -> Sequence[Any]:
        """The objects that stand there themselves when ``value`` does: tensors among them."""
        return ()

    def elements(self) -> list[Place]:
        """The places inside this one, with what stood there."""
        return []

    @classmethod
    def checks(cls, places: list[Any]) -> Iterator[Check]:
        """Checks, for all places of this kind at once, that the same objects stand there.

        They run at each call of a compiled function. Classes of which there are many places make
        one pass of C over parallel lists, a tenth of the time that Python needs for each place.
        """
        yield lambda: all(place.now() is place.value for place in places)


class Element(Place):
    """An element of a dict, where the dict's other elements are other places."""

    __slots__ = ()
    can_vary = True

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """The element, :data:`MISSING` where there is none."""
        return owner.get(key, MISSING)

    def put(self, value: Any) -> None:
        """Set the element, or remove it."""
        if value is MISSING:
            self.owner.pop(self.key, None)
        else:
            self.owner[self.key] = value


class DictEntry(Element):
    """An attribute in an object's ``__dict__``, a global, or an element of an optimizer's dicts."""

    __slots__ = ()
    is_variable = True

    def is_read_by(self, ran: CodeThatRan) -> bool:
        """Whether code that ran names the attribute or the global."""
        return self.is_read or (isinstance(self.key, str) and ran.may_read(self.key))

    def objects(self, value: Any) -> Sequence[Any]:
        """The value."""
        return (value,)

    @classmethod
    def checks(cls, places: list[Any]) -> Iterator[Check]:
        """Present values must be the same, absent ones still be absent."""
        present = [place for place in places if place.value is not MISSING]
        absent = [place for place in places if place.value is MISSING]
        if present:
            yield _same_by_key(dict.get, present)
        if absent:
            others, names, _ = _columns(absent)
            yield lambda: not any(map(dict.__contains__, others, names))


class Attribute(Place):
    """An attribute that is not in a ``__dict__``: a slot, or a function's defaults."""

    __slots__ = ()
    # Classes whose instances have their attributes for sure, so that one getter of C reads all.
    _COMPLETE = (torch.Tensor, types.FunctionType)

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """The attribute, :data:`MISSING` where it was not set; ``__getattr__`` is not asked."""
        try:
            return object.__getattribute__(owner, key)
        except AttributeError:
            return MISSING

    def put(self, value: Any) -> None:
        """Set the attribute, or delete it."""
        _set_attribute(self.owner, self.key, value)

    def is_read_by(self, ran: CodeThatRan) -> bool:
        """A function's code and defaults count where that code ran."""
        if not isinstance(self.owner, types.FunctionType):
            return self.is_read
        code = self.value if self.key == "__code__" else self.owner.__code__
        return code in ran.codes

    def objects(self, value: Any) -> Sequence[Any]:
        """The value."""
        return (value,)

    @classmethod
    def checks(cls, places: list[Any]) -> Iterator[Check]:
        """One pass for each name where the attribute is there for sure, one for all others."""
        complete = [place for place in places if isinstance(place.owner, cls._COMPLETE)]
        for name in dict.fromkeys(place.key for place in complete):
            named = [place for place in complete if place.key == name]
            yield _same_by_owner(attrgetter(name), named)
        slots = [place for place in places if not isinstance(place.owner, cls._COMPLETE)]
        if slots:
            yield _same_by_key(Attribute.read, slots)


class ClassAttribute(Place):
    """What a class or a base of it has under a name."""

    __slots__ = ()

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """What the first class that knows the name has there; no descriptor is asked."""
        for base in owner.__mro__:
            if key in vars(base):
                return vars(base)[key]
        return MISSING

    def put(self, value: Any) -> None:
        """Set the attribute of the class, or delete it."""
        _set_attribute(self.owner, self.key, value)

    @classmethod
    def checks(cls, places: list[Any]) -> Iterator[Check]:
        """The same objects."""
        yield _same_by_key(ClassAttribute.read, places)


class ClassOf(Place):
    """The class of an object."""

    __slots__ = ()

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """The class."""
        return type(owner)

    def put(self, value: Any) -> None:
        """Make the object one of another class."""
        self.owner.__class__ = value

    @classmethod
    def checks(cls, places: list[Any]) -> Iterator[Check]:
        """The same classes."""
        yield _same_by_owner(type, places)


class Cell(Place):
    """A variable of a closure."""

    __slots__ = ()
    can_vary = is_variable = True

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """The variable's value, :data:`MISSING` where it has none yet."""
        try:
            return owner.cell_contents
        except ValueError:
            return MISSING

    def put(self, value: Any) -> None:
        """Set the variable."""
        self.owner.cell_contents = value

    def objects(self, value: Any) -> Sequence[Any]:
        """The value."""
        return (value,)

    @classmethod
    def checks(cls, places: list[Any]) -> Iterator[Check]:
        """The same objects."""
        yield _same_by_owner(_cell_contents, places)


class Contents(Place):
    """All of a list, dict, set or deque."""

    __slots__ = ()

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """The elements; of a dict its keys, and after them its values."""
        return (*owner.keys(), *owner.values()) if isinstance(owner, Mapping) else tuple(owner)

    def put(self, value: Any) -> None:
        """Fill the container with other elements."""
        owner = self.owner
        if isinstance(owner, dict):
            half = len(value) // 2
            # a class of its own may refuse to be updated, as the outputs of transformers do
            kind = OrderedDict if isinstance(owner, OrderedDict) else dict
            kind.clear(owner)
            for key, element in zip(value[:half], value[half:], strict=True):
                kind.__setitem__(owner, key, element)
        elif isinstance(owner, list):
            owner[:] = value
        elif isinstance(owner, set | deque):
            owner.clear()
            (owner.extend if isinstance(owner, deque) else owner.update)(value)

    def objects(self, value: Any) -> Sequence[Any]:
        """The elements."""
        return value

    def elements(self) -> list[Place]:
        """The elements of a dict, while its keys are those of before."""
        half = len(self.value) // 2
        keys, values = self.value[:half], self.value[half:]
        if not isinstance(self.owner, dict) or tuple(self.owner) != keys:
            return []
        pairs = zip(keys, values, strict=True)
        return [Element(self.owner, k, f"{self.label}[{k!r}]", v) for k, v in pairs]

    @classmethod
    def checks(cls, places: list[Any]) -> Iterator[Check]:
        """As many elements as before, and the same ones."""
        owners = [place.owner for place in places]
        lengths = [len(place.value) // len(_views(place.owner)) for place in places]
        filled = list(chain.from_iterable(_views(p.owner) for p in places if p.value))
        elements = list(chain.from_iterable(place.value for place in places))
        # first the lengths, since map() stops silently at the end of the shorter operand
        yield lambda: list(map(len, owners)) == lengths
        if elements:
            yield lambda: all(map(is_, chain.from_iterable(filled), elements))


class _Equal(Place):
    """A place whose value is made anew at each reading, and compared by ``==``."""

    __slots__ = ()

    @classmethod
    def checks(cls, places: list[Any]) -> Iterator[Check]:
        """Equal values."""
        yield lambda: all(place.now() == place.value for place in places)


class Keys(_Equal):
    """The keys of a dict, such as the names of all attributes of an object."""

    __slots__ = ()
    can_be_effect = False  # the entries that are new or gone are effects

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """The keys, in order."""
        return tuple(owner)


class Bytes(_Equal):
    """All of a NumPy array or a buffer."""

    __slots__ = ()

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """A copy of the memory."""
        return bytes(owner) if isinstance(owner, bytearray) else owner.tobytes()


class CacheSize(_Equal):
    """How much a cached function has cached."""

    __slots__ = ()
    can_be_effect = False

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """Misses, the limit and the size: all but the hits, which each call adds to."""
        return owner.cache_info()[1:]


class Progress(Place):
    """How far an iterator or a generator of random numbers has moved on; never guarded."""

    __slots__ = ()
    can_be_effect = False

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """A text that is another one after each move."""
        if isinstance(owner, random.Random):
            return repr(owner.getstate())
        if isinstance(owner, np.random.Generator):
            return repr(owner.bit_generator.state)
        if isinstance(owner, types.GeneratorType):
            return repr(owner.gi_frame and owner.gi_frame.f_lasti)
        if isinstance(owner, itertools.count):
            return repr(owner)
        return repr(operator.length_hint(owner, -1))


class WeakReferent(Place):
    """The object that a weak reference refers to."""

    __slots__ = ()

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """The object, None where it is gone."""
        return owner()


class ContextValue(Place):
    """The value of a context variable."""

    __slots__ = ()

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """The value, :data:`MISSING` where there is none."""
        return owner.get(MISSING)

    def put(self, value: Any) -> None:
        """Set the variable."""
        self.owner.set(value)


class NumberClass(Place):
    """The class of the number in a counter, a variable whose very value no call depends on."""

    __slots__ = ()

    @staticmethod
    def read(owner: Any, key: Any) -> Any:
        """The class of what stands in an object's ``__dict__`` or a closure's variable."""
        is_cell = isinstance(owner, types.CellType)
        return type(Cell.read(owner, key) if is_cell else owner.get(key))


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


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    delattr(owner, name) if value is MISSING else setattr(owner, name, value)


def _same_by_owner(read: Callable[[Any], Any], places: list[Place]) -> Check:
    """That ``read(owner)`` still gives the very value of each place."""
    owners, _, values = _columns(places)
    return lambda: all(map(is_, map(read, owners), values))


def _same_by_key(read: Callable[[Any, Any], Any], places: list[Place]) -> Check:
    """That ``read(owner, key)`` still gives the very value of each place."""
    owners, keys, values = _columns(places)
    return lambda: all(map(is_, map(read, owners, keys), values))


def _columns(places: list[Place]) -> tuple[list, list, list]:
    return [p.owner for p in places], [p.key for p in places], [p.value for p in places]


def _views(owner: Any) -> tuple:
    """Live views of a container, which together give what :meth:`Contents.read` gives."""
    return (owner.keys(), owner.values()) if isinstance(owner, Mapping) else (owner,)
