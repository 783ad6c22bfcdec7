"""Writes to memory that the same call reads, or that one element shares with another.

PyTorch refuses some of them, each operator by rules of its own: the memory written may be a whole
input, but no part of one; where a kernel gathers, not even that. The CPU's kernel is called for its
error (:mod:`torch_jax.eager.twins`), once for each geometry. Calls that it takes are computed here
as if all were read before anything is written. Windows that overlap are refused: PyTorch promises
no order in which their elements are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.core import errors
from torch_jax.eager import twins, variants
from torch_jax.memory import geometry
from torch_jax.memory.storage import is_jax, span, tensors_in

_WRITE = "torch_jax::write_"  # the name of ``copy_`` here
_verdicts: dict[tuple, str | None] = {}


def refuse(op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise where the CPU refuses a call because of the memory that it writes."""
    tensors = [t for t in tensors_in((args, kwargs)) if is_jax(t)]
    numbers: dict[int, int] = {}  # of the storages: addresses come and go
    places = [(*_place(t), numbers.setdefault(_storage(t), len(numbers))) for t in tensors]
    known = (op, *places)
    if known not in _verdicts:
        if len(_verdicts) >= ENTRIES_REMEMBERED:
            _verdicts.clear()
        _verdicts[known] = _verdict(op, args, kwargs, tensors)
    message = _verdicts[known]
    if message is not None:
        raise RuntimeError(message)


def _verdict(op: Any, args: tuple, kwargs: dict, tensors: list[torch.Tensor]) -> str | None:
    """Return the CPU's error for the memory that a call writes, None where it computes."""
    given = twins.by_name(op, args, kwargs)
    if variants.is_out(op) and any(_reads_windows(a, b) for a, b in _pairs(op, given)):
        return errors.SHARED
    kinds = {_relation(a, b) for a, b in _pairs(op, given)}
    if kinds <= {"apart"}:
        return None
    small = "part" not in kinds and twins.can_be_small(op)
    if op.name() == _WRITE:
        op = torch.ops.aten.copy_.default
        given = {"self": given["self"], "src": given["source"]}
    makes = [_Small()] * small + [_Same(tensors)]
    errors_of_twins = (twins.refusal(op, twins.twins(op, given, make)) for make in makes)
    # small twins may be refused for their sizes
    error = next((e for e in errors_of_twins if e is None or _is_about_memory(e)), None)
    return None if error is None else str(error)


def _is_about_memory(error: Exception) -> bool:
    return "single memory location" in str(error)


def _pairs(op: Any, given: dict[str, Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pairs of written and other tensors; elements of lists with those at their position."""
    written = {a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write}
    for name in written & given.keys():
        for other, value in given.items():
            pairs = _together(given[name], value)
            yield from ((a, b) for a, b in pairs if other != name or _repeats(a))


def _together(written: Any, other: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if isinstance(written, torch.Tensor):
        yield from ((written, tensor) for tensor in tensors_in(other) if is_jax(tensor))
    elif isinstance(written, list | tuple):
        others = other if isinstance(other, list | tuple) else [other] * len(written)
        for one, two in zip(written, others, strict=False):
            yield from _together(one, two)


def _reads_windows(out: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether overlapping windows are written while a call reads their storage."""
    return geometry.may_overlap(out.shape, out.stride()) and _storage(out) == _storage(other)


def _repeats(tensor: torch.Tensor) -> bool:
    """Return whether elements of a tensor share memory; as PyTorch, for expanded ones only."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return bool(tensor.numel()) and any(n > 1 and step == 0 for n, step in strides)


def _relation(a: torch.Tensor, b: torch.Tensor) -> str:
    """Return how two tensors overlap: ``apart``, ``whole`` (one is the other) or ``part``.

    As in PyTorch, only dense tensors count; others that share elements count as apart.
    """
    if a is b:
        return "part" if _repeats(a) else "whole"
    if not (a.numel() and b.numel()):
        return "apart"
    if _storage(a) != _storage(b):
        return "apart"
    first, second = _bytes(a), _bytes(b)
    if first[1] <= second[0] or second[1] <= first[0]:
        return "apart"
    if any(geometry.memory_order(t.shape, t.stride()) is None for t in (a, b)):
        return "apart"
    return "whole" if first == second and a.stride() == b.stride() else "part"


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """Return begin and end of a tensor's elements in its storage."""
    end = span(tensor.shape, tensor.stride(), int(tensor.storage_offset()))
    return int(tensor.storage_offset()) * tensor.itemsize, end * tensor.itemsize


def _place(tensor: torch.Tensor) -> tuple:
    """Return the place of a tensor's elements in its storage."""
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class _Small:
    """Makes small twins; views of the same elements have one."""

    def __init__(self) -> None:
        self.made: dict[tuple, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if not is_jax(tensor):
            return tensor
        place = (*_place(tensor), _storage(tensor))
        return self.made.setdefault(place, twins.small(tensor))


class _Same:
    """Makes twins of the same geometry over storages that are shared as the tensors' are."""

    def __init__(self, tensors: list[torch.Tensor]):
        sizes: dict[int, int] = {}
        for tensor in tensors:
            at = _storage(tensor)
            sizes[at] = max(sizes.get(at, 0), _bytes(tensor)[1])
        self.storages = {at: torch.zeros(n, dtype=torch.uint8) for at, n in sizes.items()}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if not is_jax(tensor):
            return tensor
        storage = self.storages[_storage(tensor)].untyped_storage()
        twin = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return twin.set_(storage, int(tensor.storage_offset()), tensor.shape, tensor.stride())
