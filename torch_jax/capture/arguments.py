"""The arguments of a call: flattened, padded, and sorted into leaves and a key.

A program takes whole memories, and the place of a view in its memory is part of the program. So
that ``data[i : i + 32]`` is no program for each ``i``, a contiguous part of a larger memory is
given by value: the program gets a copy. Parts that overlap, such as the inputs and the targets of a
language model, overlap in the copy as well. A function that writes the argument, or returns it or a
view of it, needs the part itself, and takes its arguments without copies.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from torch_jax.capture.keys import CallKey, Rest, call_key, rest_of, shape_of
from torch_jax.core import trees
from torch_jax.memory import dtypes
from torch_jax.memory.storage import is_jax_tensor, memory_of


class SortedCall(NamedTuple):
    """One call."""

    given: tuple[tuple, dict[str, Any]]  # positional and keyword arguments
    leaves: list[Any]  # of the arguments' tree, with copies in place of ``parts``
    key: CallKey  # what a program fixes of the call
    parts: dict[int, torch.Tensor]  # the leaves that are given by value, by their place
    tensors: list[torch.Tensor]  # those among the leaves
    storages: list[Any]  # theirs
    rest: Rest  # of their forms

    def originals(self) -> list[Any]:
        """Return the leaves themselves, without copies."""
        if not self.parts:
            return self.leaves
        return [self.parts.get(at, leaf) for at, leaf in enumerate(self.leaves)]

    @contextmanager
    def by_value(self) -> Iterator[dict[int, torch.Tensor]]:
        """Have the parts see their copies' memories; gives tensors that see their own, by place."""
        own = {at: part.data for at, part in self.parts.items()}
        try:
            for at, part in self.parts.items():
                part.data = self.leaves[at]
            yield own
        finally:
            for at, part in self.parts.items():
                part.data = own[at]


class Arguments:
    """Sorts the arguments of one function."""

    def __init__(self, function: Any, dynamic: dict[str, dict[int, Any]]):
        """Take ``dynamic`` as :func:`torch_jax.jit` does."""
        self.dynamic = dynamic
        self._takes_any = _takes_any(function)
        if dynamic:
            self._signature = inspect.signature(function)
            if unknown := dynamic.keys() - self._signature.parameters.keys():
                raise TypeError(f"{function} has no arguments {sorted(unknown)}")

    def sort(self, args: tuple, kwargs: dict[str, Any], whole: bool = False) -> SortedCall:
        """Return the leaves of the arguments and their key; none is given by value if ``whole``."""
        if not self._takes_any and len(kwargs) > 1:  # their order is invisible to it
            kwargs = dict(sorted(kwargs.items()))
        leaves, form = trees.flatten((args, kwargs))
        key, tensors = call_key(form, leaves), _tensors_of(leaves)
        parts: dict[int, torch.Tensor] = {}
        rest = rest_of(*tensors)
        are_whole = whole or rest.shapes == list(map(shape_of, tensors[0]))
        if not are_whole and (copies := _copies(leaves)):
            parts = {at: leaves[at] for at in copies}
            for at, copy in copies.items():
                leaves[at] = copy
            tensors = _tensors_of(leaves)
            rest = rest_of(*tensors)
        fields = (args, kwargs), leaves, key, parts, *tensors[:2], rest
        return tuple.__new__(SortedCall, fields)

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
            if not (fitting := [size for size in buckets if size >= length]):
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


def _tensors_of(leaves: list[Any]) -> tuple[list[torch.Tensor], list[Any], list[Any]]:
    """Return the tensors among leaves, their storages, and the arrays that these hold, or None."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    storages = list(map(torch.Tensor.untyped_storage, tensors))
    return tensors, storages, [getattr(storage, "array", None) for storage in storages]


def _copies(leaves: list[Any]) -> dict[int, torch.Tensor]:
    """Return copies of the leaves to be given by value, by their place."""
    over: defaultdict[int, list[int]] = defaultdict(list)  # the places, by the id of the storage
    for at, leaf in enumerate(leaves):
        if is_jax_tensor(leaf):
            over[id(leaf.untyped_storage())].append(at)
    copies: dict[int, torch.Tensor] = {}
    for places in over.values():
        parts = [leaves[at] for at in places]
        first, last = _span(parts) if all(map(_is_part, parts)) else (0, 0)
        if 0 < last - first < memory_of(parts[0]).size:
            copies.update(zip(places, _copied(parts, first, last), strict=True))
    return copies


def _is_part(tensor: torch.Tensor) -> bool:
    """Return whether a leaf is a contiguous part of its memory, and only its value matters."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad:
        return False
    memory = memory_of(tensor)
    return (
        tensor.shape != memory.shape
        and tensor.is_contiguous()
        and memory.dtype == dtypes.to_jax(tensor.dtype)
        and not (tensor.is_conj() or tensor.is_neg() or tensor.__dict__)
    )


def _span(parts: list[torch.Tensor]) -> tuple[int, int]:
    """Return the first element, and that after the last, of different parts that overlap."""
    begins = [int(one.storage_offset()) for one in parts]
    spans = sorted((at, at + one.numel()) for at, one in zip(begins, parts, strict=True))
    ends = list(accumulate((end for _, end in spans), max))
    overlap = all(begin < end for (begin, _), end in zip(spans[1:], ends, strict=False))
    is_each_once = len(set(map(id, parts))) == len(parts)
    return (spans[0][0], ends[-1]) if overlap and is_each_once else (0, 0)


def _copied(parts: list[torch.Tensor], first: int, last: int) -> list[torch.Tensor]:
    """Return copies of parts of one memory, which lie over one another as the parts do."""
    with torch.inference_mode(parts[0].is_inference()):
        if len(parts) == 1:
            return [parts[0].clone()]
        memory = parts[0].as_strided((last - first,), (1,), first).clone()
        forms = [(one.shape, one.stride(), one.storage_offset() - first) for one in parts]
        return [memory.as_strided(*form) for form in forms]
