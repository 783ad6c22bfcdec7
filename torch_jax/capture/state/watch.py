"""Watching the Python state that a traced function reads and changes.

A compiled program repeats what one run of a function did. That run may have read a number from a
global, an attribute of an object, an element of a list. Python has no hook for such reads, but it
tells which code runs (``sys.setprofile``), and code tells which names it mentions. So for each
function that runs, what it can reach – its arguments, globals and closures, and from there whatever
attributes are named in the code that ran – is noted with its value. That is more than was read,
not less; where names of attributes are computed, all attributes are noted.

Afterwards everything noted is compared: what stayed the same is guarded, what changed is an effect
that a later call has to repeat.

:class:`Watch` hears which code runs, :class:`~torch_jax.capture.state.walk.Walker` follows the
values, :class:`~torch_jax.capture.state.notes.Notes` keeps what was met.
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import logging
import os
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from torch_jax._private import jax_core, pytorch
from torch_jax.capture.state import attribute_hooks, imports, known_types, new_objects
from torch_jax.capture.state.bytecode import Names, watched_names
from torch_jax.capture.state.code_that_ran import CodeThatRan
from torch_jax.capture.state.forbidden_calls import (
    READERS_OF_TENSORS,
    REFUSED,
    fix_values,
    is_refused,
)
from torch_jax.capture.state.known_calls import is_functional_call, is_reader_of_modules
from torch_jax.capture.state.notes import Notes, is_made_here
from torch_jax.capture.state.places import PLAIN, Place
from torch_jax.capture.state.proof import Proof, is_generated, is_users
from torch_jax.capture.state.walk import (
    NOTHING,
    Reach,
    Walker,
    is_iterator,
    is_stepping,
    reach_of,
    union,
)
from torch_jax.core import errors, tracers
from torch_jax.core.numbers import NUMBERS
from torch_jax.ops import registry

# What runs beneath these is none of the function's: what modules do when they are imported, the
# libraries that JAX asks while it compiles (etils, for paths of its cache), and those that it asks
# while an operator of the table is traced (opt_einsum, for the order of products).
_IMPORT = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]
_COMPILE = jax_core.code_that_compiles()
_OPERATORS = os.path.dirname(registry.__file__) + os.sep
# Builtins are called by the ten thousand in one trace: all others are passed over at once.
_HEEDED = READERS_OF_TENSORS | REFUSED.keys()


class Unscouted(tracers.NotTraceableError):
    """A trace is about to run code that no scout has seen."""


class Watch:
    """Notes what the functions that run between :meth:`start` and :meth:`stop` can reach."""

    def __init__(
        self,
        on_object: Callable[[Any], None] = lambda value: None,
        known: Any = None,
        halts: bool = True,
    ):
        """A watch that is told of the function by :meth:`start`.

        Args:
          on_object: is told of modules, optimizers and tensors when they are first met.
          known: what scouts have seen to run; nothing else may run. None: anything may.
          halts: whether a doubt stops the function; otherwise it stops the watch.
        """
        self._known, self._halts, self._watches = known, halts, False
        self._reach: Reach = NOTHING if known is None else known.reach
        self.notes, self.ran = Notes(), CodeThatRan()
        self.proof = Proof(self._is_own)
        self._given: set[int] = set()  # the ids of the arguments
        self._walker = Walker(self.notes, self.ran, on_object, self.proof.add)
        self._roots: list[tuple[Any, str, bool]] = []  # and whether values must be understood
        self._started: set[int] = set()  # frames of generators that began in this trace
        self._unseen = 0  # how many calls that hide what they call are under way, nested
        self._refused: Exception | None = None
        self._generators: _HostGenerators | None = None
        self._old_profiler: Any = None
        self._is_intact = True  # whether the profiler was still ours at the end
        # One bound method, kept: CPython borrows the profiler while it runs, and each
        # ``self._event`` would be a new object, never the one that sys.getprofile() gives.
        self._profiler = self._event

    # --- while it runs ----------------------------------------------------------------------------

    def start(self, function: Any, args: Any) -> None:
        """Watch this thread; ``function`` is about to be called with ``args``."""
        new_objects.age_existing_objects()
        known_types.forget_classes()
        self._given = set(map(id, args))
        self._generators = _HostGenerators()
        self._old_profiler = sys.getprofile()
        self._watches = True
        with self._doubting_objects():
            for value, label in ((function, ""), *((arg, "an argument") for arg in args)):
                self._root(value, label, self._reach, self._walker.walk_placed)
        for arg in args:
            if isinstance(arg, torch.Tensor) and arg.__dict__:
                self.proof.add("an argument is a tensor with attributes of its own")
            if not self._halts and type(arg).__module__ not in sys.stdlib_module_names:
                self._doubt_kept(arg)
        self.refuse_doubt()
        if self._watches:
            sys.setprofile(self._profiler)

    def _doubt_kept(self, arg: Any) -> None:
        """Doubt an argument that a trace would keep, and that somebody may wait for to go."""
        if hasattr(type(arg), "__weakref__") and not isinstance(arg, type | types.FunctionType):
            if known_types.is_users_object(arg):
                self.proof.add(f"an argument is a {type(arg).__qualname__}")

    def stop(self) -> None:
        """Watch no longer."""
        if self._watches:
            self._watches = False
            self._is_intact = sys.getprofile() is self._profiler
            if self._is_intact or self._halts:
                pytorch.set_profiler(self._old_profiler)

    def _let_go(self) -> None:
        """There is a doubt, and the function goes on: see and hold nothing of it any more."""
        self.stop()
        self.notes.let_go()
        self._roots.clear()
        self._started.clear()

    def add_root(self, value: Any, label: str) -> None:
        """Watch an object although none of its code runs."""
        self._roots.append((value, label, True))

    def _event(self, frame: Any, event: str, arg: Any) -> None:
        """What Python calls at each call and return of this thread, and those of builtins."""
        code = frame.f_code
        if code is _IMPORT or code is _COMPILE or _is_of_operators(code.co_filename):
            if code is _IMPORT and event == "call" and not self._unseen:
                self._refuse_first_import(frame)
            self._unseen += {"call": 1, "return": -1}.get(event, 0)
        elif self._unseen:
            return
        elif event == "call":
            names = watched_names(frame.f_code)
            if names is None:
                self._enter_library(frame)
            elif not (is_generated(frame) or _is_called_by_logging(frame)):
                self._enter(frame, names)
        elif event == "c_call":
            if arg.__name__ in _HEEDED:
                self._enter_builtin(frame, arg)
            self.proof.enter_builtin(frame, arg)
            self.refuse_doubt()

    def _enter(self, frame: Any, names: Names) -> None:
        """Code of a user's begins to run: note what it can reach before it changes any of that."""
        sys.setprofile(None)  # what the walk itself calls is none of the function's
        try:
            self._refuse_started_generator(frame)
            self._refuse_unscouted(frame.f_code)
            names = attribute_hooks.with_asked(frame, names)
            if is_functional_call(frame.f_code):
                self._walker.note_tensors_of(frame.f_locals.get("module"))
            self.ran.add(frame.f_code, names, is_stepping(), is_users(frame.f_code))
            self.proof.enter(frame)
            self.refuse_doubt()
            if self._watches:
                self._walk_from(frame, names)
                self.refuse_doubt()
        finally:
            if self._watches:
                sys.setprofile(self._profiler)

    def _walk_from(self, frame: Any, names: Names) -> None:
        """Note what code can reach from its variables, its globals and its imports."""
        reach = reach_of(names) if self._reach is NOTHING else union(self._reach, names)
        with self._doubting_objects(), self._walker.trusting(frame.f_code):
            for name, value in frame.f_locals.items():
                if not is_iterator(value):  # a loop's own; others are found where they are kept
                    self._root(value, name, reach, self._walker.walk)
            self._walker.walk_globals(frame.f_globals, names, reach)
            if is_users(frame.f_code):
                for module in imports.loaded_by(frame.f_code, frame.f_globals):
                    self._walker.note_module(module, reach)

    @contextmanager
    def _doubting_objects(self) -> Iterator[None]:
        """Context of a walk: objects of libraries may resist it in any way."""
        try:
            yield
        except tracers.NotTraceableError:
            raise
        except Exception as error:
            self.proof.add(f"an object cannot be looked at: {type(error).__name__}: {error}")

    def _refuse_first_import(self, frame: Any) -> None:
        """Stop where a user's code loads a module, whose code would run; at the next call it has.

        Importing what is loaded does not come by here.
        """
        caller, name = imports.caller(frame), frame.f_locals.get("name")
        if caller is None or not is_users(caller.f_code) or imports.loaded(name) is not None:
            return
        why = f"it imports {name}, which had not been loaded"
        if self._halts:
            self._refused = Unscouted(why)
            raise self._refused
        self.proof.passes |= self.proof.doubt is None
        self.proof.add(why)
        self.refuse_doubt()

    def _enter_library(self, frame: Any) -> None:
        """Code of a library begins to run, which is known or not."""
        if frame.f_back is not None and _is_called_by_logging(frame.f_back):
            return
        self.proof.enter_library(frame)
        if is_reader_of_modules(frame.f_code):
            self._walker.walk_submodules(frame.f_locals.get("self"))
        self.refuse_doubt()

    def _root(self, value: Any, label: str, reach: Reach, walk: Callable[..., None]) -> None:
        if not isinstance(value, PLAIN) and not is_made_here(value):
            self._roots.append((value, label, self._walker.checks))
            walk(value, label, reach)

    def _enter_builtin(self, frame: Any, function: Any) -> None:
        name = function.__name__
        if name in READERS_OF_TENSORS and watched_names(frame.f_code) is not None:
            fix_values(function)
        if name in REFUSED and is_refused(function, frame.f_code):
            why = f"{name}() inside torch_jax.jit {REFUSED[name]}"
            self._refuse(f"{why} ({tracers.user_line()})")

    def _refuse(self, message: str) -> None:
        """Stop the function; should it catch the error and go on, it is raised at the end."""
        if not self._halts:
            self.proof.add(message)
            self._let_go()
            return
        self._refused = tracers.NotTraceableError(message)
        raise self._refused

    def _refuse_unscouted(self, code: types.CodeType) -> None:
        """Stop before code runs that no scout has seen: what it reads has not been noted."""
        if self._known is not None and is_users(code) and code not in self._known.codes:
            self._refused = Unscouted(f"{code.co_qualname} had not run before")
            raise self._refused

    def _is_own(self, tensor: Any) -> bool:
        """Whether the run made a tensor itself; a scout cannot tell, and leaves it to the trace."""
        if not self._halts:
            return isinstance(tensor, torch.Tensor)
        known = id(tensor) in self._given or id(tensor) in self.notes.tensors
        return isinstance(tensor, torch.Tensor) and not known

    def refuse_doubt(self) -> None:
        """Stop before anything is done that may be more than a call can repeat, or undo."""
        if not self._halts:
            if self.proof.doubt is not None and self._watches:
                self._let_go()
        elif self.proof.doubt is not None and self._refused is None:
            self._refuse(
                "under torch_jax.jit this Python has to run at each call: "
                f"{self.proof.doubt}. To have it skipped, take an argument for what changes, and "
                "where it makes something for others return it instead."
            )

    def _refuse_started_generator(self, frame: Any) -> None:
        flags = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
        if not frame.f_code.co_flags & flags:
            return
        # A generator's frame is called at its start and after each yield. The instruction at
        # f_lasti is RESUME then, and its argument is 0 at the start only.
        is_resumed = frame.f_code.co_code[frame.f_lasti + 1] != 0
        if is_resumed and id(frame) not in self._started:
            self._refuse(
                f"{frame.f_code.co_name}() was started before this function under torch_jax.jit "
                f"and goes on inside it, which a compiled call cannot repeat "
                f"({tracers.user_line()}). Take its next value outside and pass it as an argument."
            )
        self._started.add(id(frame))
        self.notes.kept.append(frame)

    # --- afterwards -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Reach once more, now that all names are known; mark what was read."""
        self._find_unreached_functions()
        with self._doubting_objects():
            for _ in range(2):  # cached functions add names of their own
                self._walk_again()
        self._walker.checks = True
        self._roots.clear()  # the notes keep what they need
        self.ran.classify_names()
        for place in self.notes.places.values():
            self._mark(place)
        self.notes.note_new_keys()
        for tensor in self.notes.regraded():
            self.proof.add(f"it sets .requires_grad of a {errors.describe(tensor)}")
        self._refuse_unwatched()

    def _walk_again(self) -> None:
        """Reach from where the run came by, with all names that ran."""
        everything = functools.reduce(union, self.ran.names, NOTHING)
        users = functools.reduce(union, self.ran.users_names, NOTHING)
        for value, label, is_checked in list(self._roots):
            self._walker.checks = is_checked
            if is_checked:
                self._walker.walk(value, label, users)
            self._walker.checks = False  # what only libraries name they know
            self._walker.walk(value, label, everything)

    def _find_unreached_functions(self) -> None:
        """Closures that ran without having been reached, such as those out of a registry."""
        codes, met = self.ran.codes, self._walker.codes
        inner = {c for code in codes for c in code.co_consts if isinstance(c, types.CodeType)}
        missing = [code for code in codes - met - inner if code.co_freevars]
        # a frame does not tell which function it runs; who refers to the code does
        for function in gc.get_referrers(*missing) if missing else ():
            if isinstance(function, types.FunctionType):
                self._walker.walk(function, function.__qualname__, NOTHING)

    def _mark(self, place: Place) -> None:
        """Tell whether a later call may depend on what stands at a place."""
        if self.counts(place, place.now()) or isinstance(place.value, NUMBERS):
            place.is_read = False
        else:
            place.is_read = place.is_read_by(self.ran)

    def _refuse_unwatched(self) -> None:
        if self._refused is not None:
            raise self._refused
        if not self._is_intact:
            raise tracers.NotTraceableError(
                "the function sets a profiler of its own (sys.setprofile), or one raised: what it "
                "reads could not be watched"
            )
        if self._generators is None or self._generators.have_moved():
            raise tracers.NotTraceableError(
                "random numbers of Python or NumPy were drawn inside a function under "
                "torch_jax.jit: a compiled call would see the same ones for ever. Use "
                "torch.rand(..., device='jax'), or draw them outside and pass them in."
            )

    def end_scout(self) -> None:
        """The call is over that was only watched: look once more for doubts, and let go."""
        try:
            self.finish()
            self.notes.refuse_progress()
        except tracers.NotTraceableError as error:
            self.proof.add(str(error))
        self.notes.let_go()
        self._roots.clear()

    def reads(self, name: str) -> bool:
        """Whether the code that ran reads an attribute of this name."""
        return self.ran.reads(name)

    def counts(self, place: Place, now: Any) -> bool:
        """Whether a number was only counted up or down: nothing else depends on its value."""
        return self.ran.counts(place, now)

    def tells_numbers(self, kind: type) -> bool:
        """Whether the code that ran may tell numbers of this class from others."""
        return self.ran.tells_numbers(kind, self.notes.places.values())

    def undo(self) -> None:
        """Put back what the function changed."""
        self.notes.undo()
        if self._generators is not None:
            self._generators.put_back()


class _HostGenerators:
    """The global generators of random numbers of Python and NumPy, as they stand now."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._bytes = _numpy_bytes()

    def have_moved(self) -> bool:
        """Whether anything was drawn since."""
        return (self._python, self._bytes) != (random.getstate(), _numpy_bytes())

    def put_back(self) -> None:
        """Make them stand where they stood."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)


def _numpy_bytes() -> bytes:
    """The state of NumPy's generator as a value that ``==`` compares at once."""
    state: Any = np.random.get_state()
    return state[1].tobytes() + repr(state[2:]).encode()


@functools.cache
def _is_of_operators(filename: str) -> bool:
    """Whether a file holds operators of the table, beneath which no code of a user's runs."""
    return filename.startswith(_OPERATORS) and filename != registry.__file__


def _is_called_by_logging(frame: Any) -> bool:
    """Whether code is a handler of log messages: who logs is doubted, and libraries may."""
    return frame.f_back is not None and frame.f_back.f_code.co_filename == logging.__file__
