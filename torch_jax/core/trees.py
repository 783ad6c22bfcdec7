"""Trees of values at the border of JAX and PyTorch: one way to flatten those of both.

A tree is as in JAX, with these differences: dicts keep their order, their keys need not be
sortable, and containers that only PyTorch and other libraries know are trees too
(:mod:`torch_jax.core.containers`). Such a class is registered with JAX when the first object is met
here, so that a user's own ``jax.jit`` can take a function that returns one.

All other values are leaves: tensors, jagged and sparse ones too, arrays, numbers, modules.
``None`` is a tree without leaves, as for JAX.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from torch_jax._private import jax_core
from torch_jax.core.containers import Container, Parts, container_of

# As JAX's own, but for dicts: these it sorts by their keys.
_REGISTRY = type(jax.tree_util.default_registry)(enable_dict=False)
_LOCK = threading.RLock()  # held while a class is registered


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a tree and its structure, which is hashable and comparable.

    >>> leaves, structure = flatten({"b": 1, "a": (2, None)})
    >>> leaves, unflatten(structure, ["x", "y"])
    ([1, 2], {'b': 'x', 'a': ('y', None)})
    """
    while True:
        leaves, structure = _REGISTRY.flatten(tree)
        if not any(_meet(leaf) for leaf in leaves if type(leaf) not in _PLAIN):
            return leaves, structure


def flatten_with_paths(tree: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Return the leaves, each with its path in the tree, and the structure.

    >>> flatten_with_paths({"a": [1, 2]})[0]
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    flatten(tree)  # registers new classes
    leaves, structure = _REGISTRY.flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves], structure


def unflatten(structure: Any, leaves: Iterable[Any]) -> Any:
    """Return the tree of a structure with other leaves, which may be anything."""
    return structure.unflatten(leaves)


def owned(owner: Any, leaves: Sequence[Any]) -> Any:
    """Return the leaf whose place is given, or a value that is no place, itself.

    >>> owned(1, ["a", "b"]), owned("c", ["a", "b"])
    ('b', 'c')
    """
    return leaves[owner] if type(owner) is int else owner


def map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply a function to each leaf, and to the subtrees at the same place in other trees.

    >>> map(str, [1, {"a": 2}])
    ['1', {'a': '2'}]
    >>> map(max, (1, 5), (4, 2))
    (4, 5)
    """
    leaves, structure = flatten(tree)
    others = [structure.flatten_up_to(other) for other in rest]
    return unflatten(structure, itertools.starmap(function, zip(leaves, *others, strict=True)))


_VALUES = frozenset((int, float, complex, bool, str, bytes, type, torch.dtype, torch.device))
_PLAIN = _VALUES | {torch.Tensor, torch.nn.Parameter, jax_core.array_type(), np.ndarray}


def _meet(leaf: Any) -> bool:
    """Register the class of a supposed leaf as a container; return whether it is one."""
    kind = type(leaf)
    if jax.tree_util.default_registry.is_node(kind):
        with _LOCK:
            if not _REGISTRY.is_node(kind):  # by another thread
                _REGISTRY.register_node(kind, _as_jax_does, jax.tree_util.tree_unflatten)
        return True
    if (container := container_of(leaf)) is None:
        return False
    _register(kind, container)
    return True


def _register(kind: type, container: Container) -> None:
    """Register a class here and with JAX."""

    def flatten(value: Any) -> tuple[Iterable[Any], Any]:
        names, children, rest = container.apart(value)
        return children, (names, rest)

    def unflatten(data: Any, children: Iterable[Any]) -> Any:
        return container.together(kind, Parts(data[0], tuple(children), data[1]))

    def with_keys(value: Any) -> tuple[Iterable[tuple[Any, Any]], Any]:
        children, (names, rest) = flatten(value)
        kinds = jax.tree_util.FlattenedIndexKey, jax.tree_util.GetAttrKey
        keys = (kinds[isinstance(name, str)](name) for name in names)
        return zip(keys, children, strict=True), (names, rest)

    with _LOCK:
        if not _REGISTRY.is_node(kind):  # by another thread
            _REGISTRY.register_node(kind, flatten, unflatten, with_keys)
            jax.tree_util.register_pytree_node(kind, flatten, unflatten, with_keys)


def _as_jax_does(node: Any) -> tuple[list[Any], Any]:
    """Return the children of a node, and its structure down to these."""
    return jax.tree_util.tree_flatten(node, is_leaf=lambda child: child is not node)


def _keys_and(elements: dict[Any, Any]) -> list[tuple[Any, Any]]:
    none = jax.tree_util.GetAttrKey("None")  # jaxlib 0.10.0 refuses None as a key
    keys = (none if key is None else jax.tree_util.DictKey(key) for key in elements)
    return list(zip(keys, elements.values(), strict=True))


_REGISTRY.register_node(
    dict,
    lambda of: (tuple(of.values()), tuple(of)),
    lambda keys, elements: dict(zip(keys, elements, strict=True)),
    lambda of: (_keys_and(of), tuple(of)),
)
_REGISTRY.register_node(
    defaultdict,
    lambda of: (tuple(of.values()), (of.default_factory, tuple(of))),
    lambda rest, elements: defaultdict(rest[0], zip(rest[1], elements, strict=True)),
    lambda of: (_keys_and(of), (of.default_factory, tuple(of))),
)
