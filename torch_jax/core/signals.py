"""Signals that arrive where nothing may be raised: their handlers are called a moment later.

PyTorch's C++ asks the guard of the device (:mod:`torch_jax.patches.hook_errors`) in functions that
end the process where anything is thrown. On the way to the guard's answer Python itself looks for
signals, and a handler that raises – Ctrl-C's ``KeyboardInterrupt`` – would be thrown there. So each
handler is called by a *switch*: mostly at once, and between the question and the answer of the
guard as a pending call, which Python makes before it runs the next line.

Nothing between the two may be written in Python, where a signal could be noticed: the switch is
turned, and asked, by iterators and slots that are written in C.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import itertools
import operator
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


class _Switch:
    """Called with a handler and its arguments; a slot says how the handler is then called."""

    __slots__ = ("__call__",)


class _Handler:
    """A handler of signals, which a pending call can test for its truth."""

    def __init__(self, signum: int, function: Callable[..., Any]):
        self.signum, self.function = signum, function

    def __call__(self, signum: int, frame: Any) -> None:
        if _arrived is None:
            self.function(signum, frame)
        else:
            _arrived.append(self)

    def __bool__(self) -> bool:
        self(self.signum, sys._getframe(1))
        return False  # a pending call that returns another number than 0 has failed


_is_true = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
_add_pending = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.py_object
)(("Py_AddPendingCall", ctypes.pythonapi))

_at_once = operator.call
_later = functools.partial(_add_pending, _is_true)  # C takes no notice of the last two arguments
_switch: Any = _Switch()
_switch.__call__ = _at_once
_known: collections.deque[_Handler] = collections.deque(maxlen=256)  # pending calls hold nothing


def held() -> Iterator[None]:
    """Return an iterator, each step of which has handlers called later from there on."""
    return _turns(_later)


def let_go() -> Iterator[None]:
    """Return an iterator, each step of which has handlers called at once from there on."""
    return _turns(_at_once)


def _turns(to: Callable[..., Any]) -> Iterator[None]:
    once = itertools.repeat
    return map(setattr, once(_switch), once("__call__"), once(to))


_arrived: list[_Handler] | None = None  # handlers that wait for a call that must not be torn apart


def undisturbed(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that no signal may interrupt: handlers are called when it has returned.

    >>> undisturbed(max, 1, 2)
    2
    """
    global _arrived
    if _arrived is not None or threading.current_thread() is not threading.main_thread():
        return function(*args)
    arrived: list[_Handler] = []
    _arrived = arrived
    try:
        return function(*args)
    finally:
        _arrived = None
        for handler in arrived:
            _later(handler, handler.signum, None)


def through_switch(signum: int, handler: Any) -> Any:
    """Return the function to install for a handler, which may call the handler later."""
    if not callable(handler) or _is_through_switch(handler):
        return handler
    known = _Handler(signum, handler)
    _known.append(known)
    return functools.partial(_switch, known)


def plain(handler: Any) -> Any:
    """Return the handler that :func:`through_switch` was given.

    >>> plain(through_switch(signal.SIGINT, print)) is print, plain(signal.SIG_DFL)
    (True, <Handlers.SIG_DFL: 0>)
    """
    return handler.args[0].function if _is_through_switch(handler) else handler


def _is_through_switch(handler: Any) -> bool:
    return type(handler) is functools.partial and handler.func is _switch


def install() -> None:
    """Send the handlers that are there through the switch; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        return
    for signum in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            handler = signal.getsignal(signum)
            if callable(handler):
                signal.signal(signum, handler)
