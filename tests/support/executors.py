"""The ways to run a function on the device: a test written once runs by each of them.

Every way must give what PyTorch gives on the CPU; what one cannot stands in :data:`EXCEPTIONS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch._dynamo.exc import TorchRuntimeError

import torch_jax


def _graph(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()  # it remembers how often code was compiled, and gives up after a while
    return torch.compile(function, backend="jax")


def _pure(function: Callable[..., Any]) -> Callable[..., Any]:
    """Skip the function's Python at later calls; run it at each where it looks at a value."""
    skipped, recorded = torch_jax.jit(function, pure=True), torch_jax.jit(function)

    @functools.wraps(function, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return skipped(*args, **kwargs)
        except torch_jax.DataDependentError:
            return recorded(*args, **kwargs)

    return run


def _recorded(block: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        with block():
            return function(*args, **kwargs)

    return run


EXECUTORS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "eager": lambda function: function,
    "lazy": functools.partial(_recorded, torch_jax.lazy),
    "fused": functools.partial(_recorded, torch_jax.fused),
    "jit": _pure,
    "graph": _graph,
}
COMPILED = tuple(name for name in EXECUTORS if name != "eager")
# Dynamo takes seconds for a function; fused mode runs a function's first calls as eager mode does
SLOW = ("graph", "fused")

_WRONG_DECOMPOSITION = "until torch 2.13 its decomposition is wrong, with its own backends too"
_COUNTS_ON_THE_CPU = "it counts its steps in a CPU tensor, which pure=True refuses, and says so"

# What a way refuses or gets wrong, as (executor, case): what is raised, and why.
EXCEPTIONS: dict[tuple[str, str], tuple[type[Exception], str]] = {
    ("graph", "where_uint8"): (TorchRuntimeError, "PyTorch's shape function takes no byte masks"),
    ("graph", "nll_uint8"): (TorchRuntimeError, "PyTorch's shape function takes no uint8 classes"),
    ("jit", "adagrad"): (torch_jax.NotTraceableError, _COUNTS_ON_THE_CPU),
    ("jit", "adafactor"): (torch_jax.NotTraceableError, _COUNTS_ON_THE_CPU),
}
if torch.__version__ < (2, 14):
    for _case in ("multilabel_margin", "multilabel_margin_1d"):
        EXCEPTIONS["graph", _case] = AssertionError, _WRONG_DECOMPOSITION


def param(executor: str, *values: Any, **options: Any) -> Any:
    """A case of a parametrized test, its last value an executor; slow where that one is."""
    marks = [*options.pop("marks", ()), *([pytest.mark.slow] if executor in SLOW else [])]
    return pytest.param(*values, executor, marks=marks, **options)


each = pytest.mark.parametrize("executor", [param(name) for name in EXECUTORS])


def by(executor: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run that way."""
    return EXECUTORS[executor](function)


def outcome(executor: str, case: str) -> AbstractContextManager[Any]:
    """Around a test of a case: it must raise where the table says so, and pass elsewhere."""
    if (executor, case) in EXCEPTIONS:
        return pytest.raises(EXCEPTIONS[executor, case][0])
    return nullcontext()
