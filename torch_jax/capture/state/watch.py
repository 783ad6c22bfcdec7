"""Watching the Python state that a traced function reads and changes.

A compiled program repeats what one run of a function did. That run may have read a number from a
global, an attribute of an object, an element of a list. Python has no hook for such reads, but it
tells which code runs (``sys.setprofile``), and code tells which names it mentions. So for each
function that runs, what it can reach – its arguments, globals and closures, and from there whatever
attributes are named in the code that ran – is noted with its value. That is more than was read,
not less; where names of attributes are computed, all attributes are noted.

Afterwards everything noted is compared: what stayed the same is guarded, what changed is an effect
that a later call has to repeat.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import importlib
import inspect
import logging
import operator
import os
import random
import sys
import types
import weakref
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from torch_jax._private import pytorch
from torch_jax.capture.state import new_objects, stand_ins
from torch_jax.capture.state.bytecode import (
    Names,
    counters,
    is_users_module,
    names_of,
    reads,
    watched_names,
)
from torch_jax.capture.state.forbidden_calls import (
    READERS_OF_TENSORS,
    REFUSED,
    fix_values,
    is_refused,
)
from torch_jax.capture.state.places import (
    MISSING,
    PLAIN,
    Item,
    numpy_state,
    on_class,
    put,
    read_place,
    same,
)
from torch_jax.capture.state.reach import NOTHING, Reach, reach_of, union
from torch_jax.core import tracers
from torch_jax.core.active import ACTIVE
from torch_jax.core.numbers import NUMBERS
from torch_jax.core.tracers import is_traced
from torch_jax.memory.storage import is_jax_storage

_HOOKS = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}
_GLOBAL_HOOKS = {
    name: value
    for name, value in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and isinstance(value, dict)
}
_GROUPS = ("_parameters", "_buffers", "_modules")
_IMPORT = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]
_ENVIRONMENT = getattr(os.environ, "_data", os.environ)
# Names of what tells numbers of any class from other values.
_TELLERS = {"numbers", "Number", "Real", "Rational", "Integral", "isscalar"}
# What these hold decides about lines of a log only; any new logger would be a change.
_LOGGING = (logging.Filterer, logging.Manager, logging.PlaceHolder)
# Modules of the standard library whose objects are containers of a user's values.
_CONTAINERS = ("collections", "types", "argparse", "configparser")


_NONE: frozenset[str] = frozenset()
_NO_NAMES = Names(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, everything=False)


class Watch:
    """Notes what the functions that run between :meth:`start` and :meth:`stop` can reach."""

    def __init__(self, on_object: Callable[[Any], None] = lambda value: None):
        self.items: dict[tuple, Item] = {}
        self.lifted: set[tuple] = set()  # dicts and keys of them where numbers of the trace stand
        self.on_object = on_object  # told of modules and optimizers, when they are first met
        self.tensors: dict[int, torch.Tensor] = {}
        self.made: new_objects.Instances = {}  # objects of the result, which each call makes anew
        self.cached: dict[int, torch.Tensor] = {}  # those that cached functions keep
        self._roots: list[tuple[Any, str]] = []
        self._seen: set[tuple] = set()
        self._names: set[Names] = set()
        self._names_of_steps: set[Names] = set()
        self._reads: frozenset[str] = frozenset()
        self._counters: frozenset[str] = frozenset()
        self._codes: set[Any] = set()
        self._walked_codes: set[Any] = set()
        self._kept: list[Any] = []  # so that no id is used twice
        self._started: set[int] = set()
        self._old: Any = None
        self._importing = 0
        self._in_a_place = False  # whether what is walked stands in a global, cell or attribute
        self._intact = True
        self._refused: Exception | None = None
        self._random: Any = None
        self._callback = self._event  # kept, since CPython borrows it while it runs

    # --- while it runs ----------------------------------------------------------------------------

    def start(self, function: Any, args: Any) -> None:
        """Watch this thread; ``function`` is about to be called with ``args``."""
        stand_ins.settle_old()
        self._random, self._numpy = (random.getstate(), numpy_state()), np.random.get_state()
        self._old = sys.getprofile()
        self._in_a_place = True
        self._root(function, "", NOTHING)
        for arg in args:
            self._root(arg, "an argument", NOTHING)
        self._in_a_place = False
        sys.setprofile(self._callback)

    def stop(self) -> None:
        """Watch no longer."""
        self._intact = sys.getprofile() is self._callback
        pytorch.set_profiler(self._old)

    def _event(self, frame: Any, event: str, arg: Any) -> None:
        if frame.f_code is _IMPORT:
            self._importing += {"call": 1, "return": -1}.get(event, 0)
        elif self._importing:
            return  # what modules do when they are imported is done once
        elif event == "call":
            names = watched_names(frame.f_code)
            if names is not None and not _is_generated(frame):
                self._enter(frame, names)
        elif event == "c_call":
            name = arg.__name__
            if name in READERS_OF_TENSORS and watched_names(frame.f_code) is not None:
                fix_values(arg)
            if name in REFUSED and is_refused(arg, frame.f_code):
                why = f"{name}() inside torch_jax.jit {REFUSED[name]}"
                self._refuse(f"{why} ({tracers.user_line()})")

    def _enter(self, frame: Any, names: Names) -> None:
        sys.setprofile(None)
        try:
            self._refuse_started_generator(frame)
            self._codes.add(frame.f_code)
            # an optimizer's numbers are inputs while it steps: what reads them then is no matter
            (self._names_of_steps if _is_stepping() else self._names).add(names)
            reach = reach_of(names)
            for name, value in frame.f_locals.items():
                if not _is_iterator(value):  # a loop's own; others are found where they are kept
                    self._root(value, name, reach)
            self._globals(frame.f_globals, names, reach)
        finally:
            sys.setprofile(self._callback)

    def _refuse(self, message: str) -> None:
        """Stop the function; should it catch the error and go on, it is raised at the end."""
        self._refused = tracers.NotTraceableError(message)
        raise self._refused

    def _refuse_started_generator(self, frame: Any) -> None:
        flags = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
        if not frame.f_code.co_flags & flags:
            return
        resumed = frame.f_code.co_code[frame.f_lasti + 1] != 0  # RESUME's argument
        if resumed and id(frame) not in self._started:
            self._refuse(
                f"{frame.f_code.co_name}() was started before this function under torch_jax.jit "
                f"and goes on inside it, which a compiled call cannot repeat "
                f"({tracers.user_line()}). Take its next value outside and pass it as an argument."
            )
        self._started.add(id(frame))
        self._kept.append(frame)

    # --- reaching ---------------------------------------------------------------------------------

    def _root(self, value: Any, label: str, reach: Reach) -> None:
        if not isinstance(value, PLAIN) and not is_made_here(value):
            self._roots.append((value, label))
            self._walk(value, label, reach)

    def add_root(self, value: Any, label: str) -> None:
        """Watch an object although none of its code runs."""
        self._roots.append((value, label))

    def _globals(self, owner: dict, names: Names, reach: Reach) -> None:
        key = (id(owner), names)
        if key in self._seen:
            return
        self._seen.add(key)
        if not names.attributes.isdisjoint(("environ", "getenv")):
            self._elements(_ENVIRONMENT, "os.environ", reach)
        for name in names.globals | names.global_stores | (names.counts & owner.keys()):
            item = self._note("dict", owner, name, name)
            item.read |= name in names.globals
            self._walk_placed(item.value, name, reach)

    def _note(self, kind: str, owner: Any, key: Any, label: str, read: bool = False) -> Item:
        place = (kind, id(owner), key)
        found = self.items.get(place)
        if found is None:
            found = Item(kind, owner, key, read_place(kind, owner, key), label)
            if is_made_here(found.value):  # set in this trace, and perhaps for a while only
                return found
            self.items[place] = found
            self._kept.append(owner)
        found.read |= read
        return found

    def _walk(self, value: Any, label: str, reach: Reach) -> None:
        """Note what can be reached from a value."""
        if isinstance(value, PLAIN):
            return
        key = (id(value), reach.key, self._in_a_place)
        if key in self._seen:
            return
        self._seen.add(key)
        self._kept.append(value)
        walk = _walker(value)
        if walk is not None:
            walk(self, value, label, reach)

    def _tensor(self, value: torch.Tensor, label: str, reach: Reach) -> None:
        if is_made_here(value):
            return
        if self._in_a_place:
            self.tensors.setdefault(id(value), value)
            self.on_object(value)
        if getattr(value, "__dict__", None):
            self._object(value, label, reach)

    def _elements(self, value: Any, label: str, reach: Reach) -> None:
        if isinstance(value, dict) and any(isinstance(v, NUMBERS) for v in value.values()):
            # the group of an optimizer that steps has guards of its own
            if any(owner == id(value) for owner, _ in self.lifted) and not _is_stepping():
                self._each_element(value, label, reach)
            return
        item = self._note("contents", value, "", label, read=True)
        for index, element in enumerate(item.value):
            self._walk(element, f"{label}[{index}]", reach)

    def _each_element(self, value: dict, label: str, reach: Reach) -> None:
        self._note("keys", value, "", label, read=True)
        for key, element in value.items():
            self._note("element", value, key, f"{label}[{key!r}]", read=True)
            self._walk(element, f"{label}[{key!r}]", reach)

    def _fixed(self, value: Any, label: str, reach: Reach) -> None:
        for index, element in enumerate(value):
            self._walk(element, f"{label}[{index}]", reach)

    def _bytes(self, value: Any, label: str, _reach: Reach) -> None:
        self._note("bytes", value, "", label, read=True)

    def _function(self, value: Any, label: str, reach: Reach) -> None:
        self._walked_codes.add(value.__code__)
        names = watched_names(value.__code__)
        inner = reach if names is None else union(reach, names)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            item = self._note("cell", cell, name, name, read=True)
            self._walk_placed(item.value, name, inner)
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._note("attr", value, name, f"{label}.{name}")  # read where the code has run
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        self._walk_placed(defaults, f"{label}'s default", inner)
        if value.__dict__:
            self._object(value, label, reach)

    def _cached(self, value: Any, label: str, reach: Reach) -> None:
        """A cached function: it may not run, but what it returned hangs on what it would read."""
        self._note("cache", value, "", f"the cache of {label}", read=True)
        for kept in gc.get_referents(value):
            for tensor in kept.values() if isinstance(kept, dict) else ():
                if isinstance(tensor, torch.Tensor) and not is_made_here(tensor):
                    self.cached[id(tensor)] = self.tensors[id(tensor)] = tensor
        inner = value.__wrapped__
        if isinstance(inner, types.FunctionType):
            names = names_of(inner.__code__)
            self._codes.add(inner.__code__)
            self._names.add(names)
            self._globals(inner.__globals__, names, union(reach, names))
        self._walk(inner, label, reach)

    def _method(self, value: Any, label: str, reach: Reach) -> None:
        self._walk(value.__func__, label, reach)
        self._walk(value.__self__, label.rpartition(".")[0] or label, reach)

    def _partial(self, value: Any, label: str, reach: Reach) -> None:
        self._walk(value.func, label, reach)
        self._fixed((*value.args, *value.keywords.values()), label, reach)

    def _getter(self, value: Any, _label: str, _reach: Reach) -> None:
        """``operator.attrgetter``: the names that it reads."""
        names = frozenset(part for text in value.__reduce__()[1] for part in text.split("."))
        self._names.add(_NO_NAMES._replace(attributes=names))

    def _referent(self, value: Any, label: str, reach: Reach) -> None:
        """A weak reference, or a context variable."""
        kind = "weak" if isinstance(value, weakref.ref) else "context"
        item = self._note(kind, value, "", label, read=True)
        self._walk_placed(item.value, label, reach)

    def _state(self, value: Any, label: str, _reach: Reach) -> None:
        """What moves on when it is used: an iterator, a generator of random numbers."""
        if self._in_a_place:
            self._note("state", value, "", label)

    def _jitted(self, value: Any, label: str, reach: Reach) -> None:
        self._walk(value.function, label, reach)

    def _module_of_code(self, value: Any, label: str, reach: Reach) -> None:
        if is_users_module(value):
            names = vars(value).keys() if reach.everything else reach.names & vars(value).keys()
            for name in names | (reach.probes & reach.names):
                self._attribute(vars(value), name, f"{label}.{name}", reach)

    def _class(self, value: Any, label: str, reach: Reach) -> None:
        for name in reach.on_class(value):
            known = on_class(value, name)
            self._note("class", value, name, f"{value.__name__}.{name}", read=True)
            if isinstance(known, staticmethod | classmethod):
                known = known.__func__
            self._walk_placed(known.fget if isinstance(known, property) else known, name, reach)

    def _attribute(self, owner: dict, name: str, label: str, reach: Reach) -> None:
        item = self._note("dict", owner, name, label)
        self._walk_placed(item.value, label, reach)

    def _walk_placed(self, value: Any, label: str, reach: Reach) -> None:
        """Walk what stands in a place: a global, a cell, an attribute, a default."""
        old, self._in_a_place = self._in_a_place, True
        try:
            self._walk(value, label, reach)
        finally:
            self._in_a_place = old

    def _object(self, value: Any, label: str, reach: Reach) -> None:
        """The attributes that an object has or might have."""
        owner = value.__dict__
        names = reach.names & owner.keys()
        if reach.everything or type(value).__module__ in _CONTAINERS:
            self._note("keys", owner, "", label, read=True)  # others may come
            names = names | owner.keys()
        missing = (reach.names & reach.probes) | (reach.names & self._stored())
        for name in (*names, *missing.difference(names), *reach.on_class(type(value))):
            self._attribute(owner, name, f"{label}.{name}", reach)

    def _stored(self) -> frozenset[str]:
        return frozenset().union(*(names.stores for names in self._names))

    def _instance(self, value: Any, label: str, reach: Reach) -> None:
        self.on_object(value)
        kind = type(value)
        self._note("type", value, "", f"the class of {label}", read=True)
        owner = getattr(value, "__dict__", None)
        if isinstance(owner, dict):
            self._object(value, label, reach)
            if isinstance(value, torch.nn.Module):
                self._submodules(owner, label, reach)
        for base in kind.__mro__:
            slots = vars(base).get("__slots__", ())
            for name in {slots} if isinstance(slots, str) else set(slots):
                if name in reach.names or reach.everything:
                    item = self._note("attr", value, name, f"{label}.{name}", read=True)
                    self._walk_placed(item.value, label, reach)
        self._class(kind, label, reach)

    def _submodules(self, owner: dict, label: str, reach: Reach) -> None:
        for group in _GROUPS:
            inner = owner.get(group, {})
            for name in reach.names & inner.keys():
                self._attribute(inner, name, f"{label}.{name}", reach)
        for hooks in _HOOKS & owner.keys():
            self._elements(owner[hooks], f"{label}.{hooks}", reach)
        for name, everywhere in _GLOBAL_HOOKS.items():
            self._elements(everywhere, name, reach)

    # --- afterwards -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Reach once more, now that all names are known; mark what was read."""
        self._find_unreached_functions()
        for _ in range(2):  # cached functions add names of their own
            reach = functools.reduce(union, self._names, NOTHING)
            for value, label in list(self._roots):
                self._walk(value, label, reach)
        self._settle_names()
        for item in list(self.items.values()):
            self._mark(item, reach)
            if item.kind == "keys":
                self._note_new(item)
        if self._refused is not None:
            raise self._refused
        if not self._intact:
            raise tracers.NotTraceableError(
                "the function sets a profiler of its own (sys.setprofile), or one raised: what it "
                "reads could not be watched"
            )
        if self._random != (random.getstate(), numpy_state()):
            raise tracers.NotTraceableError(
                "random numbers of Python or NumPy were drawn inside a function under "
                "torch_jax.jit: a compiled call would see the same ones for ever. Use "
                "torch.rand(..., device='jax'), or draw them outside and pass them in."
            )

    def _note_new(self, item: Item) -> None:
        """Attributes whose computed names the function was the first to set."""
        for name in set(item.now()).difference(item.value):
            new = Item("dict", item.owner, name, MISSING, f"{item.label}.{name}")
            self.items.setdefault(("dict", id(item.owner), name), new)

    def _settle_names(self) -> None:
        """Tell names whose values are read from those that are only counted up or down."""
        names = self._names | self._names_of_steps
        self._reads, self._counters = reads(names), counters(names)

    def _mark(self, item: Item, reach: Reach) -> None:
        if self.counts(item, item.now()) or isinstance(item.value, NUMBERS):
            item.read = False
        elif item.kind == "dict" and isinstance(item.key, str):
            known = {"forward"} | self._counters  # a counter that is no number
            item.read |= reach.everything or self.reads(item.key) or item.key in known
        elif item.kind == "attr" and isinstance(item.owner, types.FunctionType):
            code = item.value if item.key == "__code__" else item.owner.__code__
            item.read = code in self._codes

    def reads(self, name: str) -> bool:
        """Whether the code that ran reads an attribute of this name."""
        return name in self._reads

    def tells_numbers(self, kind: type) -> bool:
        """Whether the code that ran may tell numbers of this class from others."""
        names = self._names | self._names_of_steps
        told = frozenset().union(*(n.tells for n in names))
        if told & (_TELLERS | {kind.__name__}):
            return True
        return any(_holds_class(i.value, kind) for i in self.items.values() if i.key in told)

    def forget_cached(self) -> bool:
        """Empty the cached functions that were met, which may keep numbers of this trace."""
        caches = [item.owner for item in self.items.values() if item.kind == "cache"]
        for cached in caches:
            cached.cache_clear()
        return bool(caches)

    def counts(self, item: Item, now: Any) -> bool:
        """Whether a number was only counted up or down: nothing else hangs on its value."""
        is_number = type(item.value) is int and type(now) is int
        return is_number and item.kind in ("dict", "cell") and item.key in self._counters

    def _find_unreached_functions(self) -> None:
        """Closures that ran without having been reached, such as those out of a registry."""
        inner = {c for code in self._codes for c in code.co_consts if isinstance(c, type(code))}
        missing = [code for code in self._codes - self._walked_codes - inner if code.co_freevars]
        for function in gc.get_referrers(*missing) if missing else ():
            if isinstance(function, types.FunctionType):
                self._walk(function, function.__qualname__, NOTHING)

    def release(self, result: Any) -> None:
        """Let go of everything that was only kept for as long as the function ran.

        Places in objects that the function made, and that nothing but its result holds, go too.
        """
        self._roots.clear()
        self._kept.clear()
        self.items = stand_ins.met_before(self.items, young := stand_ins.made_since())
        self._drop_made(result)
        while self._drop_garbage():
            pass
        self.items, self.made = new_objects.split(self.items, result, young)
        moved = [i for i in self.items.values() if i.kind == "state" and i.now() != i.value]
        if moved:
            what = f"{moved[0].label}, a {type(moved[0].owner).__name__},"
            raise tracers.NotTraceableError(
                f"{what} is moved on inside a function under torch_jax.jit, which a compiled call "
                "cannot repeat. Take its next value outside and pass it as an argument."
            )

    def _drop_made(self, result: Any) -> None:
        """Forget containers of the result that the function made."""
        found: dict[int, Any] = {}
        uses: Counter[int] = Counter()  # by other containers of the result
        queue, inner = [result], [result]
        while queue:
            value = queue.pop()
            if isinstance(value, dict | list | tuple) and id(value) not in found:
                found[id(value)] = value
                inner = list(value.values() if isinstance(value, dict) else value)
                uses.update(map(id, inner))
                queue += inner
                attributes = vars(value).values() if hasattr(value, "__dict__") else ()
                uses.update(map(id, attributes))
        del value, queue, inner
        owners = Counter(id(item.owner) for item in self.items.values())
        for key in list(found):
            # by ``found``, the argument of getrefcount, and who passed the result here
            known = 2 + uses[key] + owners[key] + 3 * (key == id(result))
            if sys.getrefcount(found[key]) <= known:
                mine = {key, id(getattr(found[key], "__dict__", None))}
                self.items = {p: i for p, i in self.items.items() if p[1] not in mine}

    def _drop_garbage(self) -> bool:
        before = len(self.items)
        owned: dict[int, list[Item]] = {}
        for item in self.items.values():
            owned.setdefault(id(item.owner), []).append(item)
        for items in owned.values():
            owner = items[0].owner
            # held by each of its items, by the name above and by the argument of getrefcount
            if sys.getrefcount(owner) <= len(items) + 2:
                for item in items:
                    del self.items[item.kind, id(owner), item.key]
        return len(self.items) < before

    def effects(self) -> Iterator[tuple[Item, Any]]:
        """What the function changed, with what stands there now."""
        for item in self.items.values():
            now = item.now()
            changes = item.kind not in ("cache", "keys", "state")
            if now is not item.value and changes and not same(now, item.value):
                yield item, now

    def undo(self) -> None:
        """Put back what the function changed."""
        for item, _ in list(self.effects()):
            put(item, item.value)
        if self._random is not None:
            random.setstate(self._random[0])
            np.random.set_state(self._numpy)


def _is_generated(frame: Any) -> bool:
    """Whether the code is that of a named tuple or of a library's dataclass."""
    if frame.f_code.co_filename != "<string>":
        return False
    module = frame.f_globals.get("__name__", "")
    library = ("namedtuple_", "torch.", "jax.", "torch_jax.")
    return module.startswith(library) or module.partition(".")[0] in sys.stdlib_module_names


def is_made_here(value: Any) -> bool:
    """Whether a value is a device tensor that the trace made."""
    if not isinstance(value, torch.Tensor) or value.device.type != "jax":
        return False
    try:
        memory: Any = value.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a wrapper, as under vmap
        return True
    capture = ACTIVE.capture
    if capture is None or not is_jax_storage(memory):
        return capture is not None
    return is_traced(memory.array) and capture.input_of(memory) is None


def _is_stepping() -> bool:
    return ACTIVE.capture is not None and ACTIVE.capture.optimizers.is_stepping


def _holds_class(value: Any, kind: type) -> bool:
    """Whether a value is a class of numbers, or has one among others, for ``isinstance``."""
    classes = value if isinstance(value, tuple) else (*getattr(value, "__args__", ()), value)
    return any(isinstance(c, type) and issubclass(kind, c) and c is not object for c in classes)


def _is_iterator(value: Any) -> bool:
    return isinstance(value, Iterator) and not hasattr(value, "__dict__")


def _walker(value: Any) -> Any:
    """How a value is walked, None where nothing in it can change."""
    for kinds, walk in _WALKS:
        if isinstance(value, kinds):
            return walk
    if "__torch_jax_compiled__" in vars(type(value)):
        return Watch._jitted
    if _is_iterator(value):
        return Watch._state
    return None if _is_opaque(value) else Watch._instance


def _is_opaque(value: Any) -> bool:
    """Whether a value is of a library's own."""
    if isinstance(value, (*_LOGGING, torch.Generator, torch.autograd.graph.Node)):
        return True
    return type(value).__module__.startswith(("torch_jax", "jax", "torch.autograd"))


_WALKS: tuple[tuple[Any, Any], ...] = (
    (torch.Tensor, Watch._tensor),
    ((list, set, dict, deque, types.MappingProxyType), Watch._elements),
    ((tuple, frozenset), Watch._fixed),
    ((np.ndarray, bytearray, array, memoryview), Watch._bytes),
    (types.FunctionType, Watch._function),
    (functools.partial, Watch._partial),
    (functools._lru_cache_wrapper, Watch._cached),
    (types.MethodType, Watch._method),
    ((random.Random, np.random.Generator), Watch._state),
    (operator.attrgetter, Watch._getter),
    ((weakref.ref, contextvars.ContextVar), Watch._referent),
    (types.ModuleType, Watch._module_of_code),
    (type, Watch._class),
)
