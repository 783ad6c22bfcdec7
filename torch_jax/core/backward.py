"""Contexts around every backward pass, as long as an object needs one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

AROUND: WeakKeyDictionary[Any, Callable[[], AbstractContextManager[Any]]] = WeakKeyDictionary()
"""For each object that needs a context, the function that makes it; nearly always empty."""


def around() -> AbstractContextManager[Any]:
    """Return the contexts in which a backward pass runs, those of one kind once."""
    stack = contextlib.ExitStack()
    for make in dict.fromkeys(AROUND.values()):
        stack.enter_context(make())
    return stack
