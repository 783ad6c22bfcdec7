"""The nodes of PyTorch's autograd graph behind a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch


def may_have_one(tensor: torch.Tensor) -> bool:
    """Return whether gradients are wanted of a tensor, and not of a view of ``no_grad`` alone."""
    try:
        return tensor.requires_grad and (tensor.is_leaf or tensor.grad_fn is not None)
    except RuntimeError:  # of such a view, whose memory was written
        return False


def is_spent(tensor: torch.Tensor) -> bool:
    """Return whether a backward pass has freed what the graph of a tensor had saved."""
    try:
        for node in nodes([tensor]):
            list(saved(node))
    except RuntimeError:
        return True
    return False


def saved_memories(leaves: Iterable[Any]) -> set[int]:
    """Return the ids of the storages saved behind results: no backward pass takes a changed one."""
    values = (value for node in nodes(leaves) for value in saved(node))
    return {id(value.untyped_storage()) for value in values if isinstance(value, torch.Tensor)}


def saved(node: Any) -> Iterator[Any]:
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        yield from node.saved_tensors
        return
    for name in dir(node):
        if name.startswith("_saved_"):
            value = getattr(node, name)
            yield from value if isinstance(value, tuple | list) else (value,)


def nodes(leaves: Iterable[Any]) -> Iterator[Any]:
    """Yield the nodes behind tensors, each once."""
    queue = [leaf.grad_fn for leaf in leaves if isinstance(leaf, torch.Tensor)]
    seen: set[Any] = set()
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            queue += [following for following, _ in node.next_functions]
