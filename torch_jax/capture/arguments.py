"""The arguments of a call: flattened, padded, and sorted into leaves and a key."""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.capture import part_arguments
from torch_jax.capture.keys import CallKey, call_key
from torch_jax.core import trees


class SortedCall(NamedTuple):
    """One call.

    Attributes:
      given: positional and keyword arguments.
      leaves: of the arguments' tree, with copies in place of ``parts``.
      key: what a program fixes of the call.
      parts: the leaves that are given by value (:mod:`torch_jax.capture.part_arguments`).
    """

    given: tuple[tuple, dict[str, Any]]
    leaves: list[Any]
    key: CallKey
    parts: dict[int, torch.Tensor]

    def arguments(self) -> tuple[tuple, dict[str, Any]]:
        """Return what the function is called with: what was given, but for ``parts``."""
        if not self.parts:
            return self.given
        args, kwargs = trees.unflatten(self.key.form, self.leaves)
        made = [part is not None for part in _of_parts(self.key.form, self.parts)]
        given = (*self.given[0], *self.given[1].values())
        pairs = zip(made, given, (*args, *kwargs.values()), strict=True)
        chosen = [copy if is_made else one for is_made, one, copy in pairs]
        return tuple(chosen[: len(args)]), dict(zip(kwargs, chosen[len(args) :], strict=True))

    def follow(self, arguments: Any) -> None:
        """Have lists and dicts that were given follow those that the function was called with."""
        if arguments is not self.given:
            follow(self.given, arguments, {id(self.leaves[at]): p for at, p in self.parts.items()})


class Arguments:
    """Sorts the arguments of one function."""

    def __init__(self, function: Any, dynamic: dict[str, dict[int, Any]]):
        """Take ``dynamic`` as :func:`torch_jax.jit` does."""
        self.dynamic = dynamic
        self._takes_any = _takes_any(function)
        if dynamic:
            self._signature = inspect.signature(function)
            unknown = dynamic.keys() - self._signature.parameters.keys()
            if unknown:
                raise TypeError(f"{function} has no arguments {sorted(unknown)}")

    def sort(self, args: tuple, kwargs: dict[str, Any], whole: bool = False) -> SortedCall:
        """Return the leaves of the arguments and their key; none is given by value if ``whole``."""
        if not self._takes_any and len(kwargs) > 1:  # their order is invisible to it
            kwargs = dict(sorted(kwargs.items()))
        leaves, form = trees.flatten((args, kwargs))
        copies, parts = (leaves, {}) if whole else part_arguments.by_value(leaves)
        if parts and not all(map(_can_be_made_again, filter(None, _of_parts(form, parts)))):
            copies, parts = leaves, {}
        return tuple.__new__(SortedCall, ((args, kwargs), copies, call_key(form, copies), parts))

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
    """Return whether a function has ``**kwargs``, or a signature that Python cannot read."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


# --- trees ----------------------------------------------------------------------------------------


def _of_parts(form: Any, parts: dict[int, torch.Tensor]) -> Iterator[Any]:
    """Yield for each argument its tree if that contains a part, else None."""
    end = 0
    for tree in (*form.children()[0].children(), *form.children()[1].children()):
        start, end = end, end + tree.num_leaves
        yield tree if any(start <= at < end for at in parts) else None


@functools.lru_cache(ENTRIES_REMEMBERED)
def _can_be_made_again(form: Any) -> bool:
    """Return whether a tree has nothing but containers that hold their elements and no more."""
    node = form.node_data()
    if node is not None and node[0] not in _CONTAINERS and not hasattr(node[0], "_fields"):
        return False
    return all(map(_can_be_made_again, form.children()))


_CONTAINERS = (tuple, list, dict, OrderedDict, defaultdict, type(None))


def follow(given: Any, made: Any, parts: dict[int, torch.Tensor]) -> Any:
    """Have lists and dicts that were given hold what those hold that were made of them.

    Args:
      given: an argument, or an element of one.
      made: what the function got in its place, and may have changed.
      parts: what was given, by the id of the copy that the function got.
    """
    if type(given) is not type(made) or not isinstance(made, tuple | list | dict):
        return parts.get(id(made), made)
    if isinstance(made, dict):
        new = {key: follow(given.get(key), value, parts) for key, value in made.items()}
        given.clear()
        given.update(new)
        return given
    pairs = zip_longest(given[: len(made)], made)
    new_elements = [follow(before, after, parts) for before, after in pairs]
    if isinstance(made, list):
        given[:] = new_elements
    return given
