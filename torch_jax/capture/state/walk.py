"""Walking Python's state: from a value to all that code with certain names can reach from it."""

from __future__ import annotations

import builtins
import contextvars
import functools
import gc
import logging
import operator
import os
import random
import sys
import types
import weakref
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from torch_jax.capture.state.bytecode import (
    HOOK,
    Names,
    file_of,
    is_users_module,
    is_watched_file,
    names_of,
    watched_names,
)
from torch_jax.capture.state.code_that_ran import CodeThatRan
from torch_jax.capture.state.known_calls import is_known_code
from torch_jax.capture.state.known_types import why_not
from torch_jax.capture.state.notes import Notes, is_made_here
from torch_jax.capture.state.places import (
    MISSING,
    PLAIN,
    Attribute,
    Bytes,
    CacheSize,
    Cell,
    ClassAttribute,
    ClassOf,
    Contents,
    ContextValue,
    DictEntry,
    Element,
    Keys,
    Place,
    Progress,
    WeakReferent,
)
from torch_jax.core.active import ACTIVE
from torch_jax.core.numbers import NUMBERS

_HOOKS = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}
_GLOBAL_HOOKS = {
    name: value
    for name, value in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and isinstance(value, dict)
}
_GROUPS = ("_parameters", "_buffers", "_modules")
# ``os.environ`` decodes at each reading; this dict of its bytes tells as well what changed.
_ENVIRONMENT = getattr(os.environ, "_data", os.environ)
# What these hold decides about lines of a log only; any new logger would be a change.
_LOGGING = (logging.Filterer, logging.Manager, logging.PlaceHolder)
# Modules of the standard library whose objects are containers of a user's values.
_CONTAINERS = ("collections", "types", "argparse", "configparser")


# --- how far --------------------------------------------------------------------------------------


class Reach:
    """How far a walk goes: attributes of these names, or of all names."""

    def __init__(
        self,
        names: frozenset[str],
        probes: frozenset[str],
        values: frozenset[str],
        everything: bool,
    ):
        self.names, self.probes, self.values, self.everything = names, probes, values, everything
        self.key = (names, everything)

    def on_class(self, kind: type) -> list[str]:
        """Those of the names that a user's class, or a base of one, knows."""
        known = {
            name
            for base in kind.__mro__
            if is_watched_file(file_of(base))
            for name in self.names & vars(base).keys()
        }
        if issubclass(kind, torch.nn.Module):
            known.add("forward")  # PyTorch calls it, and users replace it
        if self.probes and is_watched_file(file_of(kind)):
            known |= self.probes & self.names  # a class may get such an attribute later
            known.add(HOOK)
        return sorted(known)


NOTHING = Reach(frozenset(), frozenset(), frozenset(), False)


@functools.cache
def reach_of(names: Names) -> Reach:
    """A walk along the attributes that a piece of code names."""
    return Reach(names.followed, names.probes, names.values, names.everything)


@functools.lru_cache(4096)
def union(reach: Reach, names: Names) -> Reach:
    """A walk that goes as far as both."""
    if (
        names.followed <= reach.names
        and names.values <= reach.values
        and names.probes <= reach.probes
        and names.everything <= reach.everything
    ):
        return reach
    return Reach(
        reach.names | names.followed,
        reach.probes | names.probes,
        reach.values | names.values,
        reach.everything or names.everything,
    )


# --- the walk -------------------------------------------------------------------------------------


class Walker:
    """Walks values, and notes each place on the way.

    ``_WALKS`` below says which method walks values of which class; each takes the value, a label
    that an error or an explanation names it by, and how far to go.
    """

    def __init__(
        self,
        notes: Notes,
        ran: CodeThatRan,
        on_object: Callable[[Any], None],
        on_doubt: Callable[[str], None],
    ):
        """``on_object`` is told of modules, optimizers and tensors when they are first met.

        ``on_doubt`` is told of values that are not understood.
        """
        self.notes, self.ran, self.on_object, self.on_doubt = notes, ran, on_object, on_doubt
        self.codes: set[Any] = set()  # those of the functions that were met
        self._note = notes.note
        self._seen: set[tuple] = set()
        self._on_class: dict[tuple, list[str]] = {}  # classes may get other attributes later
        self.checks = True  # whether values have to be understood: not those that only PyTorch uses
        self._in_a_place = False  # whether what is walked stands in a global, cell or attribute

    def walk(self, value: Any, label: str, reach: Reach) -> None:
        """Note what can be reached from a value."""
        why = why_not(value)
        # an iterator outside of all places is one that the function made
        is_local = not self._in_a_place and isinstance(value, Iterator)
        if why is not None and self.checks and not is_local:
            self.on_doubt(f"{label or 'the function'} {why}")
        if isinstance(value, PLAIN):
            return
        key = (id(value), reach.key, self._in_a_place, self.checks)
        if key in self._seen:
            return
        self._seen.add(key)
        self.notes.kept.append(value)
        method = _method_for(value)
        if method is not None:
            method(self, value, label, reach)

    @contextmanager
    def trusting(self, code: types.CodeType) -> Iterator[None]:
        """Context in which values need not be understood, if the code is a known library's."""
        checks = self.checks
        self.checks = checks and not is_known_code(code)
        try:
            yield
        finally:
            self.checks = checks

    def walk_placed(self, value: Any, label: str, reach: Reach) -> None:
        """Walk what stands in a place: a global, a cell, an attribute, a default, an argument.

        A tensor in a place is the same at the next call, unless a guard finds that it is not; one
        in a local variable of the function may be another at each call.
        """
        old, self._in_a_place = self._in_a_place, True
        try:
            self.walk(value, label, reach)
        finally:
            self._in_a_place = old

    def _walk_named(self, value: Any, name: str, label: str, reach: Reach) -> None:
        """Walk what stands in a place of this name; a builtin called at once is heard of."""
        if isinstance(value, types.BuiltinFunctionType) and name not in reach.values:
            why = why_not(value, is_passed_on=False)
            if why is not None and self.checks:
                self.on_doubt(f"{label} {why}")
            return
        self.walk_placed(value, label, reach)

    def walk_globals(self, owner: dict, names: Names, reach: Reach) -> None:
        """Walk the globals that code mentions, out of the dict of its module."""
        key = (id(owner), names, self.checks)
        if key in self._seen:
            return
        self._seen.add(key)
        self._methods_of_tensors(reach)
        if not names.attributes.isdisjoint(("environ", "getenv")):
            self._elements(_ENVIRONMENT, "os.environ", reach)
        for name in names.globals | names.global_stores | (names.counts & owner.keys()):
            place = self._note(DictEntry, owner, name, name, name in names.globals)
            if place.value is MISSING and name in names.globals:
                place = self._note(DictEntry, vars(builtins), name, name, is_read=True)
            if place.value is not MISSING:
                self._walk_named(place.value, name, name, reach)

    def note_module(self, name: str, reach: Reach) -> None:
        """Note a module that code imports by its name, and walk it."""
        self._note(DictEntry, vars(builtins), "__import__", "__import__", is_read=True)
        place = self._note(DictEntry, sys.modules, name, f"module {name}", is_read=True)
        self.walk_placed(place.value, name, reach)

    # --- containers -------------------------------------------------------------------------------

    def _methods_of_tensors(self, reach: Reach) -> None:
        """What code names of ``torch.Tensor``: somebody may replace it, or put something before."""
        owner = _dict_of(torch.Tensor)
        for name in reach.names & (_NAMES_OF_TENSORS | reach.probes):
            self._note(DictEntry, owner, name, f"torch.Tensor.{name}", is_read=True)

    def _tensor(self, value: torch.Tensor, label: str, reach: Reach) -> None:
        if is_made_here(value):
            return
        if self._in_a_place:
            self.notes.note_tensor(value)
            self.on_object(value)
        if getattr(value, "__dict__", None):
            self._attributes(value, label, reach)

    def _elements(self, value: Any, label: str, reach: Reach) -> None:
        if value is sys.modules:
            self.on_doubt(f"{label} holds all modules there are")
            return
        if isinstance(value, dict) and any(isinstance(v, NUMBERS) for v in value.values()):
            # the group of an optimizer that steps has guards of its own
            if any(owner == id(value) for owner, _ in self.notes.lifted) and not is_stepping():
                self._each_element(value, label, reach)
            return
        if isinstance(value, dict | set) and any(map(_is_tensor_key, value)):
            self.on_doubt(f"{label} is a {type(value).__name__} with tensors for keys")
        if isinstance(value, defaultdict):
            self.walk(value.default_factory, f"the factory of {label}", reach)
        place = self._note(Contents, value, "", label, is_read=True)
        self._fixed(place.value, label, reach)

    def _each_element(self, value: dict, label: str, reach: Reach) -> None:
        self._note(Keys, value, "", label, is_read=True)
        for key, element in value.items():
            self._note(Element, value, key, f"{label}[{key!r}]", is_read=True)
            self.walk(element, f"{label}[{key!r}]", reach)

    def _fixed(self, value: Any, label: str, reach: Reach) -> None:
        for index, element in enumerate(value):
            self.walk(element, f"{label}[{index}]", reach)

    def _bytes(self, value: Any, label: str, _reach: Reach) -> None:
        self._note(Bytes, value, "", label, is_read=True)

    def _referent(self, value: Any, label: str, reach: Reach) -> None:
        """A weak reference, or a context variable."""
        kind: type[Place] = WeakReferent if isinstance(value, weakref.ref) else ContextValue
        place = self._note(kind, value, "", label, is_read=True)
        self.walk_placed(place.value, label, reach)

    def _progress(self, value: Any, label: str, _reach: Reach) -> None:
        """What moves on when it is used: an iterator, a generator of random numbers."""
        if self._in_a_place:
            self._note(Progress, value, "", label)

    # --- functions --------------------------------------------------------------------------------

    def _function(self, value: Any, label: str, reach: Reach) -> None:
        self.codes.add(value.__code__)
        names = watched_names(value.__code__)
        inner = reach if names is None else union(reach, names)
        with self.trusting(value.__code__):
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                place = self._note(Cell, cell, name, name, is_read=True)
                self.walk_placed(place.value, name, inner)
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._note(Attribute, value, name, f"{label}.{name}")  # read where the code has run
        for defaults in (value.__defaults__, value.__kwdefaults__):
            self.walk_placed(defaults, f"{label}'s default", inner)
        if value.__dict__:
            self._attributes(value, label, reach)

    def _cached(self, value: Any, label: str, reach: Reach) -> None:
        """A cached function: it may not run, but its result depends on what it would read."""
        self._note(CacheSize, value, "", f"the cache of {label}", is_read=True)
        # ``lru_cache`` shows its dict to nobody but the garbage collector
        for kept in gc.get_referents(value):
            for tensor in kept.values() if isinstance(kept, dict) else ():
                if isinstance(tensor, torch.Tensor) and not is_made_here(tensor):
                    self.notes.cached[id(tensor)] = self.notes.tensors[id(tensor)] = tensor
        inner = value.__wrapped__
        if isinstance(inner, types.FunctionType):
            names = names_of(inner.__code__)
            self.ran.add(inner.__code__, names)
            self.walk_globals(inner.__globals__, names, union(reach, names))
        self.walk(inner, label, reach)

    def _method(self, value: Any, label: str, reach: Reach) -> None:
        self.walk(value.__func__, label, reach)
        self.walk(value.__self__, label.rpartition(".")[0] or label, reach)

    def _partial(self, value: Any, label: str, reach: Reach) -> None:
        self.walk(value.func, label, reach)
        self._fixed(value.args, label, reach)
        self._elements(value.keywords, f"the keywords of {label}", reach)

    def _getter(self, value: Any, _label: str, _reach: Reach) -> None:
        """``operator.attrgetter``: the names that it reads."""
        self.ran.add_attributes(p for text in value.__reduce__()[1] for p in text.split("."))

    def _compiled(self, value: Any, label: str, reach: Reach) -> None:
        """A function under ``torch_jax.jit``, which is inlined."""
        self.walk(value.function, label, reach)

    # --- objects ----------------------------------------------------------------------------------

    def _module_of_code(self, value: Any, label: str, reach: Reach) -> None:
        if is_users_module(value):
            if "__getattr__" in vars(value) and not reach.names <= vars(value).keys():
                self.on_doubt(f"{label} is a module with a __getattr__")
            names = vars(value).keys() if reach.everything else reach.names & vars(value).keys()
            for name in names | (reach.probes & reach.names):
                self._attribute(vars(value), name, f"{label}.{name}", reach)
        else:
            self._module_of_library(value, label, reach)

    def _module_of_library(self, value: Any, label: str, reach: Reach) -> None:
        """What code names of a library's module: somebody may replace it."""
        owner = vars(value)
        for name in reach.names & owner.keys():
            place = self._note(DictEntry, owner, name, f"{label}.{name}", is_read=True)
            self._walk_named(place.value, name, place.label, reach)

    def _class(self, value: Any, label: str, reach: Reach) -> None:
        for name in self._names_on_class(value, reach):
            label = f"{value.__name__}.{name}"
            known = self._note(ClassAttribute, value, name, label, is_read=True).now()
            if known is MISSING:
                continue
            if isinstance(known, staticmethod | classmethod):
                known = known.__func__
            self.walk_placed(known.fget if isinstance(known, property) else known, name, reach)

    def _names_on_class(self, kind: type, reach: Reach) -> list[str]:
        known = self._on_class.get((kind, reach))
        if known is None:
            known = self._on_class[kind, reach] = reach.on_class(kind)
        return known

    def _attribute(self, owner: dict, name: str, label: str, reach: Reach) -> None:
        place = self._note(DictEntry, owner, name, label)
        if place.value is not MISSING:
            self._walk_named(place.value, name, label, reach)

    def _attributes(self, value: Any, label: str, reach: Reach) -> None:
        """The attributes that an object has or might have."""
        owner = value.__dict__
        names = reach.names & owner.keys()
        if reach.everything or type(value).__module__ in _CONTAINERS:
            self._note(Keys, owner, "", label, is_read=True)  # others may come
            names = names | owner.keys()
        missing = (reach.names & reach.probes) | (reach.names & self.ran.stored())
        for name in (*names, *missing.difference(names), *self._names_on_class(type(value), reach)):
            self._attribute(owner, name, f"{label}.{name}", reach)

    def _instance(self, value: Any, label: str, reach: Reach) -> None:
        self.on_object(value)
        kind = type(value)
        if isinstance(value, torch.nn.modules.lazy.LazyModuleMixin):
            self.on_doubt(f"{label} is a {kind.__name__}, which makes its parameters when it runs")
        self._note(ClassOf, value, "", f"the class of {label}", is_read=True)
        owner = getattr(value, "__dict__", None)
        if isinstance(owner, dict):
            self._attributes(value, label, reach)
            if isinstance(value, torch.nn.Module):
                self._submodules(owner, label, reach)
                if str(type(value).__module__).startswith("torch_jax"):  # its code is not followed
                    self._note(DictEntry, owner, "training", f"{label}.training", is_read=True)
                    self.walk_submodules(value)
        for name in _slots(kind):
            if name in reach.names or reach.everything:
                place = self._note(Attribute, value, name, f"{label}.{name}", is_read=True)
                if place.value is not MISSING:
                    self.walk_placed(place.value, label, reach)
        self._class(kind, label, reach)

    def _submodules(self, owner: dict, label: str, reach: Reach) -> None:
        for group in _GROUPS:
            inner = owner.get(group, {})
            for name in reach.names & (inner.keys() | reach.probes):
                self._attribute(inner, name, f"{label}.{name}", reach)
        for hooks in _HOOKS & owner.keys():
            self._elements(owner[hooks], f"{label}.{hooks}", reach)
        for name, everywhere in _GLOBAL_HOOKS.items():
            self._elements(everywhere, name, reach)

    def walk_submodules(self, module: Any) -> None:
        """Note what stands in all submodules of one: somebody looks through all of them."""
        if isinstance(module, torch.nn.Module):
            for name, one in module.named_modules():
                for group in _GROUPS:
                    label = f"{name}.{group}".lstrip(".")
                    self._elements(vars(one).get(group, {}), label, NOTHING)

    def note_tensors_of(self, module: Any) -> None:
        """Note a module's own parameters and buffers, before others stand there for a while."""
        if isinstance(module, torch.nn.Module):
            for path, one in module.named_modules():
                for group in ("_parameters", "_buffers"):
                    for name in vars(one).get(group, {}):
                        label = f"{path}.{name}".lstrip(".")
                        self._note(DictEntry, vars(one)[group], name, label)


def is_stepping() -> bool:
    """Whether an optimizer of the trace is in its step."""
    return ACTIVE.tracer is not None and ACTIVE.tracer.optimizers.is_stepping


def _dict_of(kind: type) -> dict:
    """The dict behind ``vars(kind)``, which shows it to nobody but the garbage collector."""
    (found,) = gc.get_referents(vars(kind))
    return found


_NAMES_OF_TENSORS = frozenset(dir(torch.Tensor))


def _is_tensor_key(key: Any) -> bool:
    """Whether a key is a tensor by whose identity something is found, other than a parameter's."""
    return isinstance(key, torch.Tensor) and not isinstance(key, torch.nn.Parameter)


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator, and nothing more."""
    return isinstance(value, Iterator) and not hasattr(value, "__dict__")


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        yield from {slots} if isinstance(slots, str) else set(slots)


def _method_for(value: Any) -> Any:
    """How a value is walked, None where nothing in it can change."""
    for kinds, method in _WALKS:
        if isinstance(value, kinds):
            return method
    if getattr(type(value), "__torch_jax_compiled__", False):
        return Walker._compiled
    if is_iterator(value):
        return Walker._progress
    return None if _is_opaque(value) else Walker._instance


def _is_opaque(value: Any) -> bool:
    """Whether a value belongs to a library, and holds nothing of a user's."""
    if isinstance(value, (*_LOGGING, torch.Generator, torch.autograd.graph.Node)):
        return True
    if isinstance(value, torch.nn.Module):
        return False
    return str(type(value).__module__).startswith(("torch_jax", "jax", "torch.autograd"))


# The first row whose classes a value is an instance of.
_WALKS: tuple[tuple[Any, Any], ...] = (
    (torch.Tensor, Walker._tensor),
    ((list, set, dict, deque, types.MappingProxyType), Walker._elements),
    ((tuple, frozenset), Walker._fixed),
    ((np.ndarray, bytearray, array, memoryview), Walker._bytes),
    (types.FunctionType, Walker._function),
    (functools.partial, Walker._partial),
    (functools._lru_cache_wrapper, Walker._cached),
    (types.MethodType, Walker._method),
    ((random.Random, np.random.Generator), Walker._progress),
    (operator.attrgetter, Walker._getter),
    ((weakref.ref, contextvars.ContextVar), Walker._referent),
    (types.ModuleType, Walker._module_of_code),
    (type, Walker._class),
)
