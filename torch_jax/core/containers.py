"""Containers of PyTorch and other libraries: how each is taken apart and put together again.

JAX knows tuples, lists, dicts and classes registered with it. This file adds the others:
outputs and caches of transformers, classes in PyTorch's own registry (``torch.return_types``,
``collections.deque``), ``torch.Size``, and dataclasses that hold tensors or arrays.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch.utils import _pytree as pytree


class Parts(NamedTuple):
    """A container taken apart."""

    names: tuple[Any, ...]  # of the children: attributes, keys or positions
    children: tuple[Any, ...]  # the values that it holds
    rest: Static  # the data, besides the children, that make one like it


class Container(NamedTuple):
    """The functions that take containers of one class apart and put them together."""

    apart: Callable[[Any], Parts]
    together: Callable[[type, Parts], Any]


class Static:
    """The constant part of a container: hashable and comparable, for any value.

    >>> Static(["a", {"b": [1]}]) == Static(["a", {"b": [1]}])
    True
    >>> len({Static([1]), Static([1]), Static([2])})
    2
    """

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and _are_equal(self.value, other.value)

    def __hash__(self) -> int:
        try:
            return hash(self.value)
        except TypeError:  # lists and dicts: those of one class have one hash
            return hash(type(self.value))

    def __repr__(self) -> str:
        return repr(self.value)


def _are_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # arrays, say, have no one truth value: each is only like itself
        return False


def container_of(value: Any) -> Container | None:
    """Return how to take apart a value that JAX takes for a leaf; None where it is a leaf.

    >>> container_of(torch.Size([2])) is None, container_of(torch.ones(2)) is None
    (False, True)
    """
    kind = type(value)
    if issubclass(kind, _LEAVES):
        return None
    names = {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__}
    if names & _WHOLE:
        return None
    if kind is torch.Size:
        return Container(lambda size: _numbered(size, None), _size_together)
    if _MODEL_OUTPUT in names:
        return Container(_output_apart, _output_together)
    if _is_of_caches(kind):
        return Container(_object_apart, _object_together)
    if kind in pytree.SUPPORTED_NODES:
        node = pytree.SUPPORTED_NODES[kind]
        return Container(
            lambda value: _numbered(*node.flatten_fn(value)),
            lambda _kind, parts: node.unflatten_fn(list(parts.children), parts.rest.value),
        )
    if issubclass(kind, _BUILTIN) or not dataclasses.is_dataclass(kind):
        return None
    return Container(_object_apart, _object_together) if holds_values(vars_of(value)) else None


_VALUES = (torch.Tensor, jax.Array, np.ndarray)
_LEAVES = (*_VALUES, torch.nn.Module, torch.UntypedStorage, torch.Generator, type)
# only a class of its own could make these again: subclasses are leaves, as they are for JAX
_BUILTIN = (tuple, list, dict, set, frozenset, str, bytes, int, float, complex)
_MODEL_OUTPUT = "transformers.utils.generic.ModelOutput"
_CACHES = "transformers.cache_utils"
_WHOLE = {"flax.linen.module.Module"}  # dataclasses that libraries do not want to be taken apart


def holds_values(value: Any, met: tuple[int, ...] = ()) -> bool:
    """Return whether a value holds a tensor or an array, at any depth.

    >>> holds_values([1, {"a": torch.ones(1)}]), holds_values([1, "a", None])
    (True, False)
    """
    if isinstance(value, _VALUES):
        return True
    if id(value) in met or isinstance(value, _LEAVES):
        return False
    met = (*met, id(value))
    if isinstance(value, dict):
        return any(holds_values(element, met) for element in value.values())
    if isinstance(value, list | tuple | deque):
        return any(holds_values(element, met) for element in value)
    if dataclasses.is_dataclass(value) or _is_of_caches(type(value)):
        return holds_values(vars_of(value), met)
    return any(isinstance(leaf, _VALUES) for leaf in jax.tree_util.tree_leaves(value))


def _is_of_caches(kind: type) -> bool:
    """Return whether a class is a cache of transformers, or a layer of one, without an import."""
    return any(base.__module__ == _CACHES for base in kind.__mro__)


def vars_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots included."""
    found: dict[str, Any] = {}
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        found |= {n: getattr(value, n) for n in names if n[:2] != "__" and hasattr(value, n)}
    return found | getattr(value, "__dict__", {})


def _object_apart(value: Any) -> Parts:
    """Take fields as children unless JAX marks them ``static``, and values that hold arrays."""
    attributes = vars_of(value)
    marked = {
        field.name: not field.metadata.get("static", False)
        for field in (dataclasses.fields(value) if dataclasses.is_dataclass(value) else ())
    }
    names = tuple(
        name for name, element in attributes.items() if marked.get(name, holds_values(element))
    )
    rest = {name: _CHILD if name in names else element for name, element in attributes.items()}
    return Parts(names, tuple(attributes[name] for name in names), Static(rest))


def _object_together(kind: type, parts: Parts) -> Any:
    """Make an object without ``__init__``, which might refuse leaves of other types."""
    return _filled(object.__new__(kind), parts, parts.rest.value)


def _filled(made: Any, parts: Parts, rest: dict[str, Any]) -> Any:
    children = iter(parts.children)
    for name, element in rest.items():  # in the order in which they were
        object.__setattr__(made, name, next(children) if element is _CHILD else element)
    return made


_CHILD = object()


def _output_apart(value: Any) -> Parts:
    """Take apart an output of a model: an OrderedDict with the same values as attributes."""
    names, children, rest = _object_apart(value)
    return Parts(names, children, Static((rest.value, tuple(value.keys()))))


def _output_together(kind: type, parts: Parts) -> Any:
    rest, keys = parts.rest.value
    made = _filled(OrderedDict.__new__(kind), parts, rest)
    for key in keys:
        OrderedDict.__setitem__(made, key, made.__dict__[key])
    return made


def _size_together(kind: type, parts: Parts) -> Any:
    """Return a size where all children are numbers, else a tuple."""
    try:
        return kind(parts.children)
    except TypeError:
        return parts.children


def _numbered(children: Sequence[Any], rest: Any) -> Parts:
    return Parts(tuple(range(len(children))), tuple(children), Static(rest))
