"""Regions of ``with`` blocks: each thread and each asyncio task has its own, left in any order.

A context variable holds the open scopes. A block that is left is over for all, tasks that were
started in it too. It may be left in another context than it was entered in (a generator that is
finished, or collected, on another thread): its scope is known by the frame that opened it.

A backward pass sees the blocks of its caller, since it runs on the calling thread.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from torch_jax._private import pytorch


class _Scope:
    """One block that was entered: its value, its frame, and whether it is still open."""

    __slots__ = ("frame", "is_open", "value")

    def __init__(self, value: Any, frame: int):
        self.value, self.frame, self.is_open = value, frame, True


# reentrant: a generator may be collected, which leaves its block, while this thread has the lock
_lock = threading.RLock()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread of the parent may hold the old lock for ever


os.register_at_fork(after_in_child=_after_fork)


class Scopes:
    """The values of the blocks that the caller is in, the innermost last.

    >>> scopes = Scopes("example")
    >>> scopes.enter("a"); scopes.values()
    ('a',)
    >>> scopes.leave("a"); scopes.values()
    ()
    """

    def __init__(self, name: str):
        """Start with no block; ``name`` is the context variable's."""
        self._current: ContextVar[tuple[_Scope, ...]] = ContextVar(name, default=())
        self._by_frame: dict[int, list[_Scope]] = {}
        self._open = 0  # in all contexts; torch.compile can guard a number, but no context variable

    def enter(self, value: Any = None) -> None:
        """Open a scope for the frame above the caller."""
        scope = _Scope(value, id(sys._getframe(2)))
        self._current.set((*(s for s in self._current.get() if s.is_open), scope))
        with _lock:
            self._by_frame.setdefault(scope.frame, []).append(scope)
            self._open += 1

    def leave(self, value: Any = None) -> None:
        """Close the scope of ``value`` that the frame above the caller opened."""
        if (scope := self._find(value, id(sys._getframe(2)))) is None:
            return
        scope.is_open = False  # contexts that this one cannot write to may hold the scope too
        self._current.set(tuple(s for s in self._current.get() if s.is_open))
        with _lock:
            scopes = self._by_frame.get(scope.frame, [])
            if scope in scopes:
                scopes.remove(scope)
                self._open -= 1
            if not scopes:
                self._by_frame.pop(scope.frame, None)

    def _find(self, value: Any, frame: int) -> _Scope | None:
        here = [s for s in self._current.get() if s.value is value]
        everywhere = [s for s in self._by_frame.get(frame, ()) if s.value is value]
        candidates = (*here, *everywhere, *(s for s in here if s.frame == frame))
        return candidates[-1] if candidates else None

    def values(self) -> tuple[Any, ...]:
        """Return the values of the blocks around the caller."""
        if not self._open:
            return ()
        return tuple(s.value for s in self._current.get() if s.is_open)


def decorate(context: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``function`` to run inside ``context``: for generators, only while their code runs."""
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"{type(context).__name__} decorates functions, not {function!r}")
    if inspect.isasyncgenfunction(function):
        return functools.wraps(function)(_async_generator(context, function))
    if not inspect.iscoroutinefunction(function):
        return pytorch.context_decorator(lambda: context, function)

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with context:
            return await function(*args, **kwargs)

    return call


def _async_generator(context: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with context:
            steps = function(*args, **kwargs)
        step, value = steps.asend, None
        while True:
            try:
                with context:
                    result = await step(value)
            except StopAsyncIteration:
                return
            try:
                step, value = steps.asend, (yield result)
            except GeneratorExit:
                with context:
                    await steps.aclose()
                raise
            except BaseException as error:
                step, value = steps.athrow, error

    return call
