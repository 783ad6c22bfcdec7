"""Classes that are registered with JAX as containers, since a user's tree had one of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.tree_util import FlattenedIndexKey, GetAttrKey

from torch_jax.core.containers import Container, Parts

# Classes that only torch_jax has registered with JAX.
OURS: set[type] = set()
LOCK = threading.RLock()


def register(kind: type, container: Container, registries: Sequence[Any]) -> None:
    """Register a class with JAX, and with other registries."""

    def flatten(value: Any) -> tuple[Iterable[Any], Any]:
        names, children, rest = container.apart(value)
        return children, (names, rest)

    def unflatten(data: Any, children: Iterable[Any]) -> Any:
        return container.together(kind, Parts(data[0], tuple(children), data[1]))

    def with_keys(value: Any) -> tuple[Iterable[tuple[Any, Any]], Any]:
        names, children, rest = container.apart(value)
        return [(_key(n), c) for n, c in zip(names, children, strict=True)], (names, rest)

    with LOCK:
        if kind in OURS:
            return
        OURS.add(kind)
        for registry in registries:
            registry.register_node(kind, flatten, unflatten, with_keys)
        jax.tree_util.register_pytree_node(kind, flatten, unflatten, with_keys)


def _key(name: Any) -> Any:
    return GetAttrKey(name) if isinstance(name, str) else FlattenedIndexKey(name)
