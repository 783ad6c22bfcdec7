"""Contexts around every backward pass: the caller's thread, and what an object needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

import torch

AROUND: WeakKeyDictionary[Any, Callable[[], AbstractContextManager[Any]]] = WeakKeyDictionary()
"""For each object that needs a context, the function that makes it; nearly always empty."""


def around() -> AbstractContextManager[Any]:
    """Return the contexts in which a backward pass runs, those of one kind once.

    It runs on this thread, as those of CPU tensors do. A thread of autograd's has its own recorder
    and blocks, and OpenMP's threads once more: where there are more of them than cores they sleep
    between kernels. On two cores an eager step of a GPT took an eighth longer, and one of an LSTM
    2.6 times as long. The flag is set for each pass: ``torch.inference_mode`` sets it back.
    """
    here = torch.autograd.set_multithreading_enabled(False)
    if not AROUND:
        return here
    stack = contextlib.ExitStack()
    stack.enter_context(here)
    for make in dict.fromkeys(AROUND.values()):
        stack.enter_context(make())
    return stack
