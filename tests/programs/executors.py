"""What a program may be given as ``compile``; the ways that are not built are left out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import torch_jax
from torch_jax import config


class Executor(NamedTuple):
    """A way of running a function, and the settings that hold meanwhile."""

    compile: Callable[[Any], Any]
    settings: dict[str, Any] = {}

    def exists(self) -> bool:
        """Whether this torch_jax knows the settings."""
        return all(name in config.SETTINGS for name in self.settings)


def plain(function: Any) -> Any:
    """Each operator at once."""
    return function


def _lazily(function: Any) -> Any:
    if isinstance(function, torch.nn.Module):  # in place, as `torch_jax.jit` does
        function._compiled_call_impl = _lazily(function._call_impl)
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch_jax.lazy():
            return function(*args, **kwargs)

    return call


_ALL = {
    "jit_at_once": Executor(torch_jax.jit, {"jit_recorded_calls": 0}),
    "jit": Executor(torch_jax.jit),
    "lazy": Executor(_lazily),
    "fused": Executor(plain, {"mode": "fused"}),
}


def _built() -> dict[str, Executor]:
    found = {name: executor for name, executor in _ALL.items() if executor.exists()}
    if not hasattr(torch_jax, "lazy"):
        del found["lazy"]
    return found


EXECUTORS = _built()
