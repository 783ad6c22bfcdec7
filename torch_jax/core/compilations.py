"""Count XLA's work in this process: programs compiled, and loaded from disk, with seconds.

JAX reports each program. The program is our own if code of this package has called JAX, and
another's if a user or another library has. The stack shows which: a look takes microseconds, a
program takes milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch_jax.core.user_code import OWN


class Counts(NamedTuple):
    """Count programs."""

    compiled: int = 0  # by XLA
    compile_seconds: float = 0.0
    loaded: int = 0  # from the cache on disk
    load_seconds: float = 0.0
    shared: int = 0  # new calls that an executable of this process served

    @property
    def made(self) -> int:
        """Return how many were compiled or loaded."""
        return self.compiled + self.loaded

    @property
    def seconds(self) -> float:
        """Return how long XLA took to compile and JAX to load."""
        return self.compile_seconds + self.load_seconds

    def plus(self, other: Iterable[float]) -> Counts:
        return Counts(*map(operator.add, self, other))

    def minus(self, other: Iterable[float]) -> Counts:
        return Counts(*map(operator.sub, self, other))

    def by_name(self) -> dict[str, float]:
        """Return them by the names of :func:`torch_jax.metrics`."""
        found = self._asdict()
        return {"compiles": found.pop("compiled"), **found}

    def __str__(self) -> str:
        """Describe them in words; counts of zero are left out.

        >>> print(Counts(147, 8.1, 30, 0.25))
        compiled 147 programs in 8.10 s, loaded 30 programs from disk in 0.25 s
        >>> print(Counts(1, 0.5, shared=392))
        compiled 1 program in 0.50 s, 392 new calls needed no program
        """
        parts = []
        if self.compiled or not any(self):
            compiled = _many(self.compiled, "program")
            parts.append(f"compiled {compiled} in {self.compile_seconds:.2f} s")
        if self.loaded:
            loaded = _many(self.loaded, "program")
            parts.append(f"loaded {loaded} from disk in {self.load_seconds:.2f} s")
        if self.shared:
            parts.append(f"{_many(self.shared, 'new call')} needed no program")
        return ", ".join(parts)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


NOTHING = Counts()

_PROGRAM = "/jax/core/compile/backend_compile_duration"  # compiled, or loaded
_LOADED = "/jax/compilation_cache/cache_retrieval_time_sec"  # before the other, on its thread


_lock = threading.RLock()  # a handler of signals may come in between, and compile
_totals = {True: NOTHING, False: NOTHING}  # our own, and others'
_here = threading.local()  # ``counts``: of programs compiled for us on this thread

# Called for each program of our own with its name and its counts, where it was needed.
listeners: list[Callable[[str, Counts], None]] = []


def own() -> Counts:
    """Return the counts of programs compiled for us so far, on all threads."""
    return _totals[True]


def everything() -> Counts:
    """Return the same with the programs of others: of a user's ``jax.jit``, say."""
    with _lock:
        return _totals[True].plus(_totals[False])


def here() -> Counts:
    """Return the counts of programs compiled for us so far on this thread."""
    return getattr(_here, "counts", NOTHING)


def take_over(counts: Counts) -> None:
    """Add to this thread's counts those that another thread had compiled for it."""
    _here.counts = here().plus(counts)


@functools.cache
def listen() -> None:
    """Count from here on; called when the device is first used."""
    importlib.import_module("jax.monitoring").register_event_duration_secs_listener(_hear)


@contextlib.contextmanager
def or_shared() -> Iterator[None]:
    """Count the block, a first call, as shared where XLA has nothing to do for it."""
    before = here()
    yield
    if here() is before:
        _add(Counts(shared=1), is_own=True)


def _hear(event: str, seconds: float, **given: str | int) -> None:
    """Count a program that JAX reports, on the thread that needs it."""
    if event == _LOADED:
        _here.has_loaded = True
    if event != _PROGRAM:
        return
    is_loaded, _here.has_loaded = getattr(_here, "has_loaded", False), False
    counts = Counts(loaded=1, load_seconds=seconds) if is_loaded else Counts(1, seconds)
    is_own = _is_own(sys._getframe(1))
    _add(counts, is_own)
    if is_own:
        name = str(given.get("fun_name", "")).removeprefix("jit(").removesuffix(")")
        for listener in listeners:
            listener(name, counts)


def _add(counts: Counts, is_own: bool) -> None:
    with _lock:
        _totals[is_own] = _totals[is_own].plus(counts)
    if is_own:
        take_over(counts)


def _is_own(frame: Any) -> bool:
    """Return whether the innermost code that is not JAX's is of this package."""
    passed = _of_jax()
    while frame is not None and frame.f_code.co_filename.startswith(passed):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(OWN)


@functools.cache
def _of_jax() -> tuple[str, ...]:
    """Return prefixes of the paths of JAX's code, and of the code by which JAX calls itself."""
    specs = [importlib.util.find_spec(name) for name in ("jax", "jaxlib")]
    folders = [os.path.dirname(spec.origin or "") + os.sep for spec in specs if spec]
    return *folders, contextlib.__file__, functools.__file__
