"""The functions that a program gets as ``compile``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import torch_jax


class Executor(NamedTuple):
    """A way of running a function, and the settings that hold meanwhile."""

    compile: Callable[[Any], Any]
    settings: dict[str, Any] = {}


def plain(function: Any) -> Any:
    """Each operator at once."""
    return function


def _through(way: Callable[[Callable], Callable]) -> Callable[[Any], Any]:
    """Functions run a way; of a module its call, in place, as ``torch_jax.jit`` does it."""

    def compile(function: Any) -> Any:
        if isinstance(function, torch.nn.Module):
            function._compiled_call_impl = way(function._call_impl)
            return function
        return way(function)

    return compile


def _lazily(function: Callable) -> Callable:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch_jax.lazy():
            return function(*args, **kwargs)

    return call


def _once(function: Callable) -> Callable:
    found: list[Any] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not found:
            found.append(function(*args, **kwargs))
        return found[0]

    return call


EXECUTORS = {
    "jit": Executor(torch_jax.jit),
    "jit, compiled later": Executor(torch_jax.jit, {"compiled_from_run": 3}),
    "lazy": Executor(_through(_lazily)),
    "fused": Executor(plain, {"mode": "fused"}),
}
STALE = Executor(_through(_once))  # the fault of all faults: each function runs once
