"""Autograd at the border: what a caller's backward pass may see of a function that was skipped.

Inside of a trace PyTorch's autograd runs as ever. Its caller gets results of one node
(:mod:`torch_jax.capture.outer_backward`), so whatever else the caller's graph could show is found
here, and makes the function one whose Python runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_jax.memory.storage import is_jax

_OF_PYTHON = torch.autograd.function.BackwardCFunction
_KNOWN_NODES = ("torch.utils.checkpoint", "torch_jax.", "torch._functorch", "torch.autograd.graph")


def rewritten(histories: Iterable[tuple[Any, Any, bool]]) -> str | None:
    """Why the caller's graph is another after the run: tensors that were written in place.

    ``histories`` are tensors with their ``grad_fn`` and ``requires_grad`` of before.
    """
    for tensor, node, requires_grad in histories:
        if tensor.requires_grad != requires_grad or tensor.grad_fn is not node:
            return "it writes in place to a tensor of which gradients are wanted"
    return None


def shared(capture: Any, leaves: Iterable[Any]) -> str | None:
    """Why results are not of one node: they are views, of what was there or of each other."""
    wanted = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad and is_jax(t)]
    for tensor in wanted:
        known = capture.input_of(tensor.untyped_storage()) is not None
        if known and tensor.grad_fn is not None:
            return "it returns a view of an older tensor of which gradients are wanted"
    uses = Counter(id(t.untyped_storage()) for t in {id(t): t for t in wanted}.values())
    if max(uses.values(), default=0) > 1:
        return "two of its results share memory, and gradients are wanted of them"
    return None


def runs_python(leaves: Iterable[Any]) -> str | None:
    """Why the backward pass of results may do something else each time: it runs Python."""
    for node in _nodes(leaves):
        if isinstance(node, _OF_PYTHON):
            kind = getattr(type(node), "_forward_cls", type(node))
            if not kind.__module__.startswith(_KNOWN_NODES):
                return f"its results are differentiated by {kind.__name__}, outside of it"
    return None


def is_spent(tensor: torch.Tensor) -> bool:
    """Whether a backward pass has freed what the graph of a tensor had saved."""
    try:
        for node in _nodes([tensor]):
            for _ in _saved(node):
                pass
    except RuntimeError:
        return True
    return False


def entangled(inputs: Iterable[torch.Tensor]) -> str | None:
    """Why gradients of inputs are no partial ones: one input was computed from another."""
    inputs = list(inputs)
    known = set(map(id, inputs))
    ends = {tensor.grad_fn for tensor in inputs} - {None}
    for node in _nodes(inputs):
        if id(getattr(node, "variable", None)) in known:
            return "gradients are wanted of two tensors of which one was computed from the other"
        if any(following in ends for following, _ in node.next_functions):
            return "gradients are wanted of two tensors of which one was computed from the other"
    return None


def tell_of_second_derivatives(result: Any, tell: Callable[[], Any]) -> None:
    """Have ``tell`` called when the graph of a result is differentiated, to be so again."""

    def prehook(gradients: Any) -> None:
        if torch.is_grad_enabled():
            tell()

    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
            leaf.grad_fn.register_prehook(prehook)


def saved_memories(leaves: Iterable[Any]) -> set[int]:
    """The ids of the storages of what the nodes behind results have saved.

    A backward pass asks whether one was written since.
    """
    values = (value for node in _nodes(leaves) for value in _saved(node))
    return {id(value.untyped_storage()) for value in values if isinstance(value, torch.Tensor)}


def _saved(node: Any) -> Iterator[Any]:
    if isinstance(node, _OF_PYTHON):
        yield from node.saved_tensors
        return
    for name in dir(node):
        if name.startswith("_saved_"):
            value = getattr(node, name)
            yield from value if isinstance(value, tuple | list) else (value,)


def _nodes(leaves: Iterable[Any]) -> Iterator[Any]:
    queue = [leaf.grad_fn for leaf in leaves if isinstance(leaf, torch.Tensor)]
    seen: set[Any] = set()
    while queue:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            queue += [following for following, _ in node.next_functions]
