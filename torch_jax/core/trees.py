"""Trees of values as JAX flattens them, with the containers of PyTorch and of other libraries.

JAX knows tuples, lists, dicts and what is registered with it. What PyTorch's own registry knows
besides (``torch.return_types``, outputs of models of transformers) and dataclasses are registered
with JAX when one is first met here, so that ``jax.tree.map``, ``jax.jit`` and ``jax.grad`` take
them from then on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree and its structure, a ``jax.tree_util.PyTreeDef``.

    >>> leaves, structure = flatten({"a": 1, "b": (2, None)})
    >>> leaves, unflatten(structure, ["x", "y"])
    ([1, 2], {'a': 'x', 'b': ('y', None)})
    """
    while True:
        leaves, structure = jax.tree_util.tree_flatten(tree)
        unknown = {type(leaf) for leaf in leaves if _is_container(type(leaf))}
        if not unknown:
            return leaves, structure
        for kind in unknown:
            _register(kind)


def unflatten(structure: Any, leaves: Any) -> Any:
    """The tree of a structure with other leaves."""
    return jax.tree_util.tree_unflatten(structure, leaves)


def map(function: Callable[[Any], Any], tree: Any) -> Any:
    """A tree with a function applied to each leaf.

    >>> map(str, [1, {"a": 2}])
    ['1', {'a': '2'}]
    """
    leaves, structure = flatten(tree)
    return unflatten(structure, [function(leaf) for leaf in leaves])


def _is_container(kind: type) -> bool:
    if issubclass(kind, torch.Tensor):
        return False
    return kind in pytree.SUPPORTED_NODES or dataclasses.is_dataclass(kind)


def _register(kind: type) -> None:
    """Register a container with JAX as PyTorch flattens it, or by the fields of a dataclass."""
    node = pytree.SUPPORTED_NODES.get(kind)
    if node is None:
        names = [field.name for field in dataclasses.fields(kind)]
        jax.tree_util.register_dataclass(kind, names, [])
        return

    def back(context: Any, children: Any) -> Any:
        return node.unflatten_fn(list(children), context)

    jax.tree_util.register_pytree_node(kind, node.flatten_fn, back)
