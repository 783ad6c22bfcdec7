"""The arguments of a call: flattened, padded, and sorted into leaves and a key."""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import torch
from torch.utils import _pytree as pytree

from torch_jax.capture import part_arguments
from torch_jax.capture.keys import CallKey, call_key
from torch_jax.core import registered


class SortedCall(NamedTuple):
    """One call.

    Attributes:
      leaves: of the arguments' tree, with copies in place of ``parts``.
      key: what a program fixes of the call.
      parts: the leaves that are given by value (:mod:`torch_jax.capture.part_arguments`).
    """

    leaves: list[Any]
    key: CallKey
    parts: dict[int, torch.Tensor]

    def unflatten(self) -> Any:
        """Positional and keyword arguments."""
        return self.key.form.unflatten(self.leaves)


class Arguments:
    """How the arguments of one function are sorted."""

    def __init__(self, function: Any, dynamic: dict[str, dict[int, Any]]):
        """``dynamic`` as :func:`torch_jax.jit` takes it."""
        self.dynamic = dynamic
        self._takes_any = _takes_any(function)
        if dynamic:
            self._signature = inspect.signature(function)
            unknown = dynamic.keys() - self._signature.parameters.keys()
            if unknown:
                raise TypeError(f"{function} has no arguments {sorted(unknown)}")

    def sort(self, args: tuple, kwargs: dict[str, Any], whole: bool = False) -> SortedCall:
        """Return the leaves of the arguments and their key; none is given by value if ``whole``."""
        leaves, form = flatten(args, kwargs, self._takes_any)
        leaves, parts = (leaves, {}) if whole else part_arguments.by_value(leaves)
        return tuple.__new__(SortedCall, (leaves, call_key(form, leaves), parts))

    def padded(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Return the arguments with those padded that ``dynamic`` names."""
        bound = self._signature.bind(*args, **kwargs)
        for name, sizes in self.dynamic.items():
            if name in bound.arguments:
                self._pad(bound.arguments, name, sizes)
        return bound.args, bound.kwargs

    def _pad(self, given: dict[str, Any], name: str, sizes: dict[int, Any]) -> None:
        tensor = given[name]
        for dim, buckets in sizes.items():
            length = tensor.shape[dim]
            fitting = [size for size in buckets if size >= length]
            if not fitting:
                raise ValueError(
                    f"argument {name!r} has size {length} in dim {dim}, more than the largest "
                    f"bucket, {max(buckets)}"
                )
            size = min(fitting)
            mask = f"{name}_mask"
            if mask in self._signature.parameters and given.get(mask) is None:
                given[mask] = torch.arange(size, device=tensor.device) < length
            extra = list(tensor.shape)
            extra[dim] = size - length
            if extra[dim]:
                tensor = torch.cat([tensor, tensor.new_zeros(extra)], dim)
        given[name] = tensor


def _takes_any(function: Any) -> bool:
    """Whether a function has ``**kwargs``, as far as can be told."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


# --- trees ----------------------------------------------------------------------------------------


def flatten(args: tuple, kwargs: dict[str, Any], takes_any: bool = True) -> tuple[list[Any], Any]:
    """The leaves of arguments, and their tree.

    ``takes_any`` is whether the function has ``**kwargs``, whose order it may see.
    """
    try:
        leaves, form = jax.tree_util.tree_flatten((args, kwargs))
    except (TypeError, ValueError):  # a dict whose keys cannot be sorted
        leaves, spec = pytree.tree_flatten((args, kwargs))
        return leaves, _Form(spec)
    if registered.OURS:
        leaves, form = registered.leaves_of_calls((args, kwargs), leaves, form)
    if kwargs or any(type(arg) not in _NO_DICTS for arg in args):
        orders = tuple(map(tuple, _dicts(_with_orders(args, kwargs, takes_any))))
        if any(order != tuple(sorted(order)) for order in orders):
            return leaves, _Ordered(form, orders, takes_any)
    return leaves, form


def _with_orders(args: tuple, kwargs: dict[str, Any], takes_any: bool) -> tuple:
    """The arguments without the dict of keywords, where nobody sees its order."""
    return (args, kwargs) if takes_any else (args, tuple(kwargs[name] for name in sorted(kwargs)))


_NO_DICTS = frozenset((torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)))


def _dicts(value: Any) -> Iterator[dict]:
    """The dicts in a tree of tuples, lists and dicts, which JAX sorts by their keys."""
    if type(value) is dict:
        yield value
        for key in sorted(value):
            yield from _dicts(value[key])
    elif isinstance(value, tuple | list):
        for element in value:
            yield from _dicts(element)
    elif isinstance(value, OrderedDict | defaultdict):
        for element in value.values():
            yield from _dicts(element)


class _Ordered(NamedTuple):
    """A tree of arguments with dicts whose keys stand in an order of their own."""

    form: Any
    orders: tuple[tuple, ...]
    takes_any: bool

    def unflatten(self, leaves: list[Any]) -> Any:
        """The arguments, with other leaves."""
        value = self.form.unflatten(leaves)
        dicts = list(_dicts(_with_orders(value[0], value[1], self.takes_any)))
        for found, order in zip(dicts, self.orders, strict=True):
            elements = dict(found)
            found.clear()
            found.update((key, elements[key]) for key in order)
        return value


class _Form:
    """The tree of arguments that JAX cannot flatten."""

    def __init__(self, spec: Any):
        self._spec, self._text = spec, repr(spec)

    def unflatten(self, leaves: list[Any]) -> Any:
        """The arguments, with other leaves."""
        return pytree.tree_unflatten(leaves, self._spec)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Form) and self._text == other._text

    def __repr__(self) -> str:
        return self._text
