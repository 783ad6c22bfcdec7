"""``torch_xla.experimental.scan``: a loop over tensors; ``scan_layers``: one over layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from torch_jax.interop import scan_layers as own


def scan(fn: Callable[..., Any], init: Any, xs: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Run ``carry, y = fn(carry, x)`` along the first dimension of ``xs``; return carry and ``ys``.

    The loop is Python's, recorded with the rest of a step: the function may do anything, and
    gradients flow to all tensors that it uses. A program of as many bodies is long for thousands of
    rounds; ``torch._higher_order_ops.scan`` compiles one body.
    """
    leaves, structure = _pytree.tree_flatten(xs)
    carry = _pytree.tree_map_only(torch.Tensor, torch.clone, init)
    results = []
    for rows in zip(*(leaf.unbind() for leaf in leaves), strict=True):
        carry, result = fn(carry, _pytree.tree_unflatten(list(rows), structure))
        results.append(_pytree.tree_map_only(torch.Tensor, torch.clone, result))
    return carry, _pytree.tree_map(lambda *ys: torch.stack(ys), *results)


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: torch.Tensor,
    partition_fn: Any = None,
    is_layer_pure: bool = False,
) -> torch.Tensor:
    """Return the output of all layers; under ``torch_xla.compile`` one of them is compiled."""
    return own.scan_layers(list(layers), input_data)
