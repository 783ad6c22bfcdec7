"""What a program may be given as ``compile``; the ways that are not built are left out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import torch_jax
from torch_jax import config


class Executor(NamedTuple):
    """A way of running a function, the settings that hold meanwhile, and a name it needs."""

    compile: Callable[[Any], Any]
    settings: dict[str, Any] = {}
    needs: str = "config"

    def exists(self) -> bool:
        """Whether this torch_jax has the name and knows the settings."""
        known = all(name in config.SETTINGS for name in self.settings)
        return known and hasattr(torch_jax, self.needs)


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


ALL = {
    "jit": Executor(torch_jax.jit),
    "lazy": Executor(_through(_lazily), needs="lazy"),
    "fused": Executor(plain, {"mode": "fused"}),
}
EXECUTORS = {name: executor for name, executor in ALL.items() if executor.exists()}
STALE = Executor(_through(_once))  # the fault of all faults: each function runs once
