"""Classes that are registered with JAX as containers, since a user's tree had one of them.

JAX has one registry for all libraries of a process, and takes each class once. Entries made here
give way: a user who registers his class himself later gets no error, and his functions are in force
from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.tree_util import FlattenedIndexKey, GetAttrKey

from torch_jax.core import patching
from torch_jax.core.containers import Container, Parts

AT_FIRST_CONTAINER = "the first class that torch_jax registers with JAX"

# Classes that only torch_jax has registered with JAX.
OURS: set[type] = set()
LOCK = threading.RLock()


class Entry(NamedTuple):
    """The functions by which JAX flattens and unflattens objects of one class."""

    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten: Callable[[Any, Iterable[Any]], Any]
    with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]]


class _Data(NamedTuple):
    """JAX's auxiliary data of a node, with the function that makes it again, which may change."""

    unflatten: Callable[[Any, Iterable[Any]], Any]
    data: Any


_entries: dict[type, Entry] = {}


def register(kind: type, container: Container, registries: Sequence[Any]) -> None:
    """Register a class with JAX, and with other registries."""
    with LOCK:
        if kind in _entries:
            return
        if not _entries:
            patching.apply(AT_FIRST_CONTAINER)
        _entries[kind] = _entry_of(kind, container)
        OURS.add(kind)
        for registry in registries:
            registry.register_node(kind, _flatten, _unflatten, _with_keys)
        jax.tree_util.register_pytree_node(kind, _flatten, _unflatten, _with_keys)


def _entry_of(kind: type, container: Container) -> Entry:
    def flatten(value: Any) -> tuple[Iterable[Any], Any]:
        names, children, rest = container.apart(value)
        return children, (names, rest)

    def unflatten(data: Any, children: Iterable[Any]) -> Any:
        return container.together(kind, Parts(data[0], tuple(children), data[1]))

    def with_keys(value: Any) -> tuple[Iterable[tuple[Any, Any]], Any]:
        names, children, rest = container.apart(value)
        return [(_key(n), c) for n, c in zip(names, children, strict=True)], (names, rest)

    return Entry(flatten, unflatten, with_keys)


def _key(name: Any) -> Any:
    return GetAttrKey(name) if isinstance(name, str) else FlattenedIndexKey(name)


def _flatten(value: Any) -> tuple[Iterable[Any], _Data]:
    entry = _entries[type(value)]
    children, data = entry.flatten(value)
    return children, _Data(entry.unflatten, data)


def _with_keys(value: Any) -> tuple[Iterable[tuple[Any, Any]], _Data]:
    entry = _entries[type(value)]
    children, data = entry.with_keys(value)
    return children, _Data(entry.unflatten, data)


def _unflatten(data: _Data, children: Iterable[Any]) -> Any:
    return data.unflatten(data.data, children)


# --- users who register their class themselves ----------------------------------------------------


def _give_way(kind: type, entry: Entry) -> None:
    """Put a user's functions in force for his class."""
    with LOCK:
        if kind not in OURS:
            raise ValueError(f"Duplicate custom PyTreeDef type registration for {kind}.")
        _entries[kind] = entry
        OURS.discard(kind)


@patching.patch("jax.tree_util.default_registry.__class__.register_node", AT_FIRST_CONTAINER)
def _patch_register_node(original: Any) -> Any:
    """JAX refuses a class that is registered already; one that torch_jax has entered gives way."""

    def register_node(
        self: Any, kind: type, flatten: Any, unflatten: Any, with_keys: Any = None
    ) -> None:
        if kind not in _entries or not self.is_node(kind):
            original(self, kind, flatten, unflatten, with_keys)
        elif self is jax.tree_util.default_registry:  # the first of those that JAX has
            _give_way(kind, Entry(flatten, unflatten, with_keys or _numbered(flatten)))

    return register_node


def _numbered(flatten: Any) -> Any:
    def with_keys(value: Any) -> tuple[Iterable[tuple[Any, Any]], Any]:
        children, data = flatten(value)
        return [(FlattenedIndexKey(i), child) for i, child in enumerate(children)], data

    return with_keys


@patching.patch(
    "jax.tree_util.default_registry.__class__.register_dataclass_node", AT_FIRST_CONTAINER
)
def _patch_register_dataclass(original: Any) -> Any:
    """JAX refuses a class that is registered already; one that torch_jax has entered gives way."""

    def register_dataclass_node(self: Any, kind: type, data: Any, meta: Any) -> None:
        if kind not in _entries or not self.is_node(kind):
            original(self, kind, data, meta)
        elif self is jax.tree_util.default_registry:
            _give_way(kind, _of_fields(kind, tuple(data), tuple(meta)))

    return register_dataclass_node


def _of_fields(kind: Any, data: tuple[str, ...], meta: tuple[str, ...]) -> Entry:
    """Return JAX's entry for a dataclass: fields are children or static, ``__init__`` makes it."""

    def flatten(value: Any) -> tuple[Iterable[Any], Any]:
        return [getattr(value, n) for n in data], tuple(getattr(value, n) for n in meta)

    def unflatten(rest: Any, children: Iterable[Any]) -> Any:
        given = dict(zip(data, children, strict=True)) | dict(zip(meta, rest, strict=True))
        return kind(**given)

    def with_keys(value: Any) -> tuple[Iterable[tuple[Any, Any]], Any]:
        children, rest = flatten(value)
        return list(zip(map(GetAttrKey, data), children, strict=True)), rest

    return Entry(flatten, unflatten, with_keys)
