"""``torch_xla.experimental.scan``: a loop with one compiled body, which is PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.scan import scan as own_scan
from torch.utils import _pytree


def scan(fn: Callable[..., Any], init: Any, xs: Any, **kwargs: Any) -> tuple[Any, Any]:
    """``carry, y = fn(carry, x)`` along the first dimension of ``xs``; the carry, and all ``y``.

    The function may write to its arguments, and gradients flow to tensors of its closure.
    """

    def step(carry: Any, x: Any) -> Any:
        return _copied(fn(*_copied((carry, x))))

    return own_scan(step, init, xs)


def _copied(tree: Any) -> Any:
    return _pytree.tree_map_only(torch.Tensor, torch.clone, tree)
