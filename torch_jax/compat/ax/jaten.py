"""``torchax.ops.jaten``: the decorator that gives operators to functions of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_jax.compat.ax.ops_registry import register_torch_dispatch_op


def op(*aten: Any, **kwargs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace these operators by the decorated function."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in aten:
            register_torch_dispatch_op(one, function, **kwargs)
        return function

    return enter
