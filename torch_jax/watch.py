"""Watching the Python state that a traced function reads and changes.

A compiled program repeats what one run of a function did. That run may have read a number from a
global, an attribute of an object, an element of a list. Python has no hook for such reads, but it
tells which code runs (``sys.setprofile``), and code tells which names it mentions. So for each
function that runs, what it can reach – its arguments, globals and closures, and from there whatever
attributes are named in the code that ran – is noted with its value. That is more than was read,
never less, but for attributes whose names are computed.

Afterwards everything noted is compared: what stayed the same is guarded, what changed is an effect
that a later call has to repeat.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from torch_jax import traced
from torch_jax.active import ACTIVE
from torch_jax.names import Names, is_watched_file, watched_names
from torch_jax.traced import is_traced

MISSING: Any = type("MISSING", (), {"__repr__": lambda self: "nothing"})()

_PLAIN = (
    int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size,
    types.BuiltinFunctionType, types.MethodDescriptorType, type(Ellipsis), range, slice,
)  # fmt: skip
# Builtins that give another value at each call, or whose effect a compiled call would not have.
_REFUSED = {
    "print": "prints once, while the function is traced; print outside of it",
    "input": "asks once, while the function is traced; ask outside of it",
    "time": "is read once, while the function is traced; read the clock outside of it",
    "perf_counter": "is read once, while the function is traced; read the clock outside of it",
    "monotonic": "is read once, while the function is traced; read the clock outside of it",
}


class Item:
    """One place in Python's state: an owner, a key, and what stood there when it was first met.

    ``kind``: ``dict`` (an attribute, a global or an element), ``attr`` (a slot, or a class's
    attribute), ``cell`` (a closure's), ``contents`` (all of a list, set or dict), ``array`` (all
    of a NumPy array).
    """

    __slots__ = ("kind", "owner", "key", "value", "label", "read", "written")

    def __init__(self, kind: str, owner: Any, key: Any, value: Any, label: str):
        self.kind, self.owner, self.key, self.value, self.label = kind, owner, key, value, label
        self.read = self.written = False

    def now(self) -> Any:
        """What stands there now."""
        return _READERS[self.kind](self.owner, self.key)


def _cell(cell: Any, _key: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return MISSING


def _contents(owner: Any, _key: Any) -> tuple:
    return (*owner.keys(), *owner.values()) if isinstance(owner, dict) else tuple(owner)


_READERS: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda owner, key: owner.get(key, MISSING),
    "attr": lambda owner, key: getattr(owner, key, MISSING),
    "cell": _cell,
    "contents": _contents,
    "array": lambda owner, key: owner.tobytes(),
}


def read_place(kind: str, owner: Any, key: Any) -> Any:
    """What stands at a place of Python's state."""
    return _READERS[kind](owner, key)


class Watch:
    """Notes what the functions that run between :meth:`start` and :meth:`stop` can reach."""

    def __init__(self, on_object: Callable[[Any], None] = lambda value: None):
        self.items: dict[tuple, Item] = {}
        self.on_object = on_object  # told of modules and optimizers, when they are first met
        self.tensors: dict[int, torch.Tensor] = {}
        self._roots: list[tuple[Any, str]] = []
        self._seen: set[tuple] = set()
        self._attributes: set[str] = set()
        self._stores: set[str] = set()
        self._codes: set[Any] = set()
        self._kept: list[Any] = []  # so that no id is used twice
        self._started: set[int] = set()

    # --- while it runs ----------------------------------------------------------------------------

    def start(self, function: Any, args: Any) -> None:
        """Watch this thread; ``function`` is about to be called with ``args``."""
        self._random = random.getstate(), _numpy_state()
        self._old = sys.getprofile()
        self._root(function, "", None)
        for arg in args:
            self._root(arg, "an argument", None)
        sys.setprofile(self._event)

    def stop(self) -> None:
        """Watch no longer."""
        sys.setprofile(self._old)

    def _event(self, frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            names = watched_names(frame.f_code)
            if names is not None:
                self._enter(frame, names)
        elif event == "c_call":
            name = arg.__name__
            if name in _REFUSED and watched_names(frame.f_code) is not None:
                if getattr(arg, "__module__", "") in ("builtins", "time"):
                    raise traced.NotTraceableError(
                        f"{name}() inside torch_jax.jit {_REFUSED[name]} ({_line()})"
                    )

    def _enter(self, frame: Any, names: Names) -> None:
        sys.setprofile(None)
        try:
            self._refuse_started_generator(frame)
            self._codes.add(frame.f_code)
            self._attributes |= names.attributes
            self._stores |= names.stores
            where = frame.f_code.co_name
            for name, value in frame.f_locals.items():
                self._root(value, name if name != ".0" else where, names)
            self._globals(frame.f_globals, names, frame.f_globals.get("__name__", ""))
        finally:
            sys.setprofile(self._event)

    def _refuse_started_generator(self, frame: Any) -> None:
        flags = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
        if not frame.f_code.co_flags & flags:
            return
        resumed = frame.f_code.co_code[frame.f_lasti + 1] != 0  # RESUME's argument
        if resumed and id(frame) not in self._started:
            raise traced.NotTraceableError(
                f"{frame.f_code.co_name}() was started before this function under torch_jax.jit "
                f"and goes on inside it, which a compiled call cannot repeat ({_line()}). Take its "
                "next value outside and pass it as an argument."
            )
        self._started.add(id(frame))
        self._kept.append(frame)

    # --- reaching ---------------------------------------------------------------------------------

    def _root(self, value: Any, label: str, names: Names | None) -> None:
        if isinstance(value, _PLAIN) or _is_made_here(value):
            return
        self._roots.append((value, label))
        if names is None:
            self._walk(value, label, frozenset(), False, "")
        else:
            everything = names.everything and not isinstance(value, torch.nn.Module)
            attributes = names.attributes | names.stores
            self._walk(value, label, attributes, everything, "")

    def _globals(self, owner: dict, names: Names, module: str) -> None:
        attributes = names.attributes | names.stores
        key = (id(owner), names)
        if key in self._seen:
            return
        self._seen.add(key)
        for name in names.globals | names.global_stores:
            if name in owner or name in names.global_stores:
                item = self._note("dict", owner, name, f"{module}.{name}")
                item.read |= name in names.globals
                self._walk(item.value, name, attributes, False, "")

    def _note(self, kind: str, owner: Any, key: Any, label: str) -> Item:
        place = (kind, id(owner), key)
        found = self.items.get(place)
        if found is None:
            value = _READERS[kind](owner, key)
            found = self.items[place] = Item(kind, owner, key, value, label)
            self._kept.append(owner)
        return found

    def _walk(self, value: Any, label: str, names: frozenset[str], everything: bool, via: str):
        """Note what can be reached from a value by attributes of these names."""
        if isinstance(value, torch.Tensor):
            if not _is_made_here(value):
                self.tensors.setdefault(id(value), value)
            return
        if isinstance(value, _PLAIN):
            return
        key = (id(value), names, everything)
        if key in self._seen:
            return
        self._seen.add(key)
        self._kept.append(value)
        walk = _walker(value)
        if walk is not None:
            walk(self, value, label, names, everything)

    def _elements(self, value: Any, label: str, names: frozenset[str], _everything: bool) -> None:
        item = self._note("contents", value, "", label)
        item.read = True
        for index, element in enumerate(item.value):
            self._walk(element, f"{label}[{index}]", names, False, "")

    def _fixed(self, value: Any, label: str, names: frozenset[str], _everything: bool) -> None:
        for index, element in enumerate(value):
            self._walk(element, f"{label}[{index}]", names, False, "")

    def _array(self, value: Any, label: str, _names: frozenset[str], _everything: bool) -> None:
        self._note("array", value, "", label).read = True

    def _function(self, value: Any, label: str, names: frozenset[str], _everything: bool) -> None:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            item = self._note("cell", cell, name, name)
            item.read = True
            inner = watched_names(value.__code__)
            reached = names | inner.attributes if inner else names
            self._walk(item.value, name, reached, False, "")
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        self._fixed(defaults, f"{label}'s default", names, False)

    def _method(self, value: Any, label: str, names: frozenset[str], everything: bool) -> None:
        self._walk(value.__func__, label, names, False, "")
        self._walk(value.__self__, f"{label.rpartition('.')[0]}" or label, names, everything, "")

    def _partial(self, value: Any, label: str, names: frozenset[str], _everything: bool) -> None:
        self._walk(value.func, label, names, False, "")
        self._fixed((*value.args, *value.keywords.values()), label, names, False)

    def _module_of_code(self, value: Any, label: str, names: frozenset[str], _all: bool) -> None:
        file = getattr(value, "__file__", None)
        if value.__name__ == "__main__" or (file is not None and is_watched_file(file)):
            for name in names & vars(value).keys():
                self._attribute(vars(value), name, f"{label}.{name}", names)

    def _class(self, value: Any, label: str, names: frozenset[str], _everything: bool) -> None:
        for kind in value.__mro__:
            if is_watched_file(_file_of(kind)):
                for name in names & vars(kind).keys():
                    self._class_attribute(kind, name, f"{kind.__name__}.{name}", names)

    def _class_attribute(self, kind: type, name: str, label: str, names: frozenset[str]) -> None:
        value = vars(kind)[name]
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, types.FunctionType):
            self._walk(value, label, names, False, "")
        elif not inspect.isdatadescriptor(value):
            self._note("attr", kind, name, label).read = True
            self._walk(value, label, names, False, "")

    def _attribute(self, owner: dict, name: str, label: str, names: frozenset[str]) -> None:
        item = self._note("dict", owner, name, label)
        item.read |= name in self._attributes
        item.written |= name in self._stores
        self._walk(item.value, label, names, False, "")

    def _instance(self, value: Any, label: str, names: frozenset[str], everything: bool) -> None:
        self.on_object(value)
        owner = getattr(value, "__dict__", None)
        if isinstance(owner, dict):
            stores = names & self._stores
            for name in owner.keys() if everything else (names & owner.keys()) | stores:
                self._attribute(owner, name, f"{label}.{name}", names)
            if isinstance(value, torch.nn.Module):
                self._submodules(owner, label, names)
        for kind in type(value).__mro__:
            for name in names & set(vars(kind).get("__slots__", ())):
                self._note("attr", value, name, f"{label}.{name}").read = True
                self._walk(getattr(value, name, None), f"{label}.{name}", names, False, "")
        self._class(type(value), label, names, False)

    def _submodules(self, owner: dict, label: str, names: frozenset[str]) -> None:
        for group in ("_parameters", "_buffers", "_modules"):
            inner = owner.get(group, {})
            for name in names & inner.keys():
                self._attribute(inner, name, f"{label}.{name}", names)
        for hooks in _HOOKS & owner.keys():
            if owner[hooks] or hooks == "_forward_hooks":
                self._elements(owner[hooks], f"{label}.{hooks}", names, False)

    # --- afterwards -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Reach once more, now that all names are known; mark what was read."""
        names = frozenset(self._attributes | self._stores)
        for value, label in self._roots:
            self._walk(value, label, names, False, "")
        for item in self.items.values():
            if item.kind == "dict" and isinstance(item.key, str):
                item.read |= item.key in self._attributes
        if self._random != (random.getstate(), _numpy_state()):
            raise traced.NotTraceableError(
                "random numbers of Python or NumPy were drawn inside a function under "
                "torch_jax.jit: a compiled call would see the same ones for ever. Use "
                "torch.rand(..., device='jax'), or draw them outside and pass them in."
            )

    def release(self) -> None:
        """Let go of everything that was only kept for as long as the function ran.

        Places in objects that the function made, and that nothing else holds, go too.
        """
        self._roots.clear()
        self._kept.clear()
        owned: dict[int, list[Item]] = {}
        for item in self.items.values():
            owned.setdefault(id(item.owner), []).append(item)
        for items in owned.values():
            owner = items[0].owner
            # held by each of its items, by the name above and by the argument of getrefcount
            if sys.getrefcount(owner) <= len(items) + 2:
                for item in items:
                    del self.items[item.kind, id(owner), item.key]

    def effects(self) -> Iterator[tuple[Item, Any]]:
        """What the function changed, with what stands there now."""
        for item in self.items.values():
            now = item.now()
            if now is not item.value and not same(now, item.value):
                yield item, now

    def undo(self) -> None:
        """Put back what the function changed."""
        for item, _ in list(self.effects()):
            put(item, item.value)


def put(item: Item, value: Any) -> None:
    """Make ``value`` stand at the item's place."""
    owner, key = item.owner, item.key
    if item.kind == "dict":
        owner.pop(key, None) if value is MISSING else owner.__setitem__(key, value)
    elif item.kind == "attr":
        delattr(owner, key) if value is MISSING else setattr(owner, key, value)
    elif item.kind == "cell":
        owner.cell_contents = value
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
    else:
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
    return isinstance(a, _PLAIN) and bool(a == b)


_HOOKS = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}


def _is_made_here(value: Any) -> bool:
    """Whether a value is a device tensor that the trace made."""
    if not isinstance(value, torch.Tensor) or value.device.type != "jax":
        return False
    memory: Any = value.untyped_storage()
    capture = ACTIVE.capture
    return capture is not None and is_traced(memory.array) and capture.input_of(memory) is None


def _walker(value: Any) -> Any:
    """How a value is walked, None where nothing in it can change."""
    for kinds, walk in _WALKS:
        if isinstance(value, kinds):
            return walk
    return None if _is_opaque(value) else Watch._instance


def _is_opaque(value: Any) -> bool:
    """Whether a value is of a library's own: optimizers and schedulers have their own watch."""
    return isinstance(value, torch.Generator | torch.autograd.graph.Node) or (
        type(value).__module__.startswith(("torch_jax", "jax", "torch.autograd"))
    )


def _file_of(kind: type) -> str:
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or f"<{kind.__module__}>"


def _numpy_state() -> bytes:
    state: Any = np.random.get_state()
    return state[1].tobytes() + repr(state[2:]).encode()


def _line() -> str:
    return traced.user_line()


_WALKS: tuple[tuple[Any, Any], ...] = (
    ((list, set, dict, deque), Watch._elements),
    ((tuple, frozenset), Watch._fixed),
    (np.ndarray, Watch._array),
    (types.FunctionType, Watch._function),
    (functools.partial, Watch._partial),
    (types.MethodType, Watch._method),
    (types.ModuleType, Watch._module_of_code),
    (type, Watch._class),
)
