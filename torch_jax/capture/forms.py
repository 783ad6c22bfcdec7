"""The forms of a call's tensors: what a program fixes of those among the arguments.

PyTorch compares types, shapes, strides, dtypes and ``requires_grad`` of all tensors in C++. The
rest is compared here, as lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from torch_jax._private import dynamo

_offset = torch.Tensor.storage_offset
_is_leaf, shape_of = attrgetter("is_leaf"), attrgetter("shape")


def memories_of(storages: Sequence[Any]) -> list[Any]:
    """Return what storages hold, None for those of other devices."""
    return [getattr(storage, "array", None) for storage in storages]


class Rest(NamedTuple):
    """The properties of a call's tensors that PyTorch does not compare."""

    aliases: list[int] | None  # where each memory, and each tensor, is met first, if some share
    shapes: list[tuple[int, ...]]  # of the memories
    dtypes: list[Any]  # of the memories
    offsets: list[int]
    are_leaves: list[bool]
    attributes: list[tuple]  # types and names of attributes, of subclasses and parameters


def rest_of(tensors: Sequence[torch.Tensor], storages: Sequence[Any], memories: list[Any]) -> Rest:
    """Return these properties of a call's tensors."""
    held = [one for one in memories if one is not None]
    attributes = [(type(one), *vars(one)) for one in tensors if type(one) is not torch.Tensor]
    fields = (
        _aliases(tensors, storages), list(map(shape_of, held)), [one.dtype for one in held],
        list(map(_offset, tensors)), list(map(_is_leaf, tensors)), attributes,
    )  # fmt: skip
    return tuple.__new__(Rest, fields)


def _aliases(tensors: Sequence[torch.Tensor], storages: Sequence[Any]) -> list[int] | None:
    ids = list(map(id, storages))
    if len(set(ids)) == len(ids):
        return None
    first: dict[int, int] = {}
    return [first.setdefault(one, at) for at, one in enumerate((*ids, *map(id, tensors)))]


def _each_once(call: Any) -> list[torch.Tensor]:
    """Return a call's tensors, each once, as PyTorch wants them."""
    if call.rest.aliases is None:
        return call.tensors
    return list({id(tensor): tensor for tensor in call.tensors}.values())


class Forms:
    """The forms of the tensors of one call."""

    def __init__(self, call: Any):
        self._have_forms = dynamo.tensor_guards(_each_once(call))
        self._rest, self._shown = call.rest, _shown(call)

    def fit(self, call: Any) -> bool:
        """Return whether a call of the same key has tensors of these forms."""
        return self._rest == call.rest and self._have_forms(*_each_once(call))

    def difference(self, call: Any) -> str:
        """Return how a call's tensors differ, in words."""
        for at, (was, now) in enumerate(zip(self._shown, _shown(call), strict=True)):
            if was != now:
                return f"argument {at} was {was}, now it is {now}"
        if self._rest.aliases != call.rest.aliases:
            return "other arguments share memory with one another"
        return "a tensor among the arguments has another type, or other attributes"


def _shown(call: Any) -> list[str]:
    """Return a text for each leaf that is a tensor, and an empty one for others."""
    return [_text(leaf) if isinstance(leaf, torch.Tensor) else "" for leaf in call.leaves]


def _text(tensor: torch.Tensor) -> str:
    memory: Any = getattr(tensor.untyped_storage(), "array", None)
    dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
    text = f"{dtype}{shape}"
    if not tensor.is_contiguous() or (memory is not None and tensor.shape != memory.shape):
        text += f" with strides {list(tensor.stride())} at {tensor.storage_offset()}"
        text += "" if memory is None else f" in memory {list(memory.shape)}"
    return text + ", which requires gradients" * tensor.requires_grad
