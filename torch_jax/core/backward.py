"""Contexts around every backward pass, for as long as somebody needs one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

AROUND: WeakKeyDictionary[Any, Callable[[], AbstractContextManager[Any]]] = WeakKeyDictionary()
"""What makes a context, by the object that needs it; nearly always empty."""


def around() -> AbstractContextManager[Any]:
    """The contexts in which a backward pass runs, those of one kind once."""
    stack = contextlib.ExitStack()
    for make in dict.fromkeys(AROUND.values()):
        stack.enter_context(make())
    return stack
