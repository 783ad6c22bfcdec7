"""Calls that a function under ``torch_jax.jit`` must not make, or that need a guard."""

from __future__ import annotations

from typing import Any

import torch

from torch_jax.capture.state.bytecode import watched_names
from torch_jax.core.active import ACTIVE

# Builtins that give another value at each call, or whose effect a compiled call would not have.
_CLOCK = "is read once, while the function is traced; read the clock outside of it"
_CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
REFUSED = {
    "print": "prints once, while the function is traced; print outside of it",
    "input": "asks once, while the function is traced; ask outside of it",
    "urandom": "draws once, while the function is traced; use torch.rand(..., device='jax')",
    **dict.fromkeys((*_CLOCKS, *(f"{name}_ns" for name in _CLOCKS)), _CLOCK),
    **dict.fromkeys(("now", "utcnow", "today", "localtime", "gmtime"), _CLOCK),
}
READERS_OF_TENSORS = {"tolist", "numpy", "__array__", "__dlpack__"}


def is_refused(function: Any, caller: Any) -> bool:
    """Whether a builtin whose name is refused is Python's own, called by watched code."""
    if function.__name__ == "urandom":
        return True
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or getattr(owner, "__module__", "")
    known = module in ("builtins", "time", "datetime")
    return known and watched_names(caller) is not None


def fix_values(method: Any) -> None:
    """Code reads a CPU tensor past the dispatcher: each call must find the same values."""
    tensor, capture = getattr(method, "__self__", None), ACTIVE.tracer
    if capture is not None and isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
        capture.host.fix(tensor)
