"""``torchax.ops.jtorch``: the decorator by which functions of arrays serve PyTorch's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_jax.compat.ax.ops_registry import register_torch_function_op


def register_function(
    torch_func: Any, **kwargs: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a function of PyTorch's by the decorated function."""
    return lambda function: register_torch_function_op(torch_func, function, **kwargs)
