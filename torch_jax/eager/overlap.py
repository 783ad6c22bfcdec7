"""Writes to memory that the same call reads, or that one element shares with another.

PyTorch refuses some of them, each operator by rules of its own: the memory written may be a whole
input, but no part of one; where a kernel gathers, not even that. The CPU's kernel is called for its
error (:mod:`torch_jax.eager.twins`). Calls that it takes are computed here as if all were read
before anything is written. Windows that overlap are refused: PyTorch promises no order in which
their elements are written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import torch

from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.core import errors
from torch_jax.eager import twins, variants
from torch_jax.memory import geometry
from torch_jax.memory.storage import is_jax, tensors_in

_verdicts: dict[tuple, Exception | None] = {}


def refuse(op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise where the CPU refuses a call because of the memory that it writes."""
    numbers: dict[int, int] = {}  # of the storages: addresses come and go
    places = [_place(t, numbers) for t in tensors_in((args, kwargs)) if is_jax(t)]
    known = (op, *places)
    if known not in _verdicts:
        if len(_verdicts) >= ENTRIES_REMEMBERED:
            _verdicts.clear()
        _verdicts[known] = _verdict(twins.on_cpu(op), args, kwargs)
    error = _verdicts[known]
    if error is not None and error is not twins.UNKNOWN:
        raise RuntimeError(str(error))


def _verdict(op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception | None:
    """Return the CPU's error for the memory that a call writes, None where it computes."""
    if op is None:
        return None
    given = twins.by_name(op, args, kwargs)
    pairs = list(_pairs(op, given))
    if variants.is_out(op) and any(itertools.starmap(_reads_windows, pairs)):
        return RuntimeError(errors.SHARED)
    kinds = set(itertools.starmap(_relation, pairs)) - {"apart"}
    tries = _twins(op, given, "part" in kinds) if kinds else ()
    return twins.verdict(op, tries, lambda error, _: "single memory location" in str(error))


def _twins(op: Any, given: twins.Named, is_of_parts: bool) -> Iterator[twins.Named]:
    """Yield small twins, which may be refused for their sizes, and twins of the same geometry."""
    if not is_of_parts and twins.can_be_small(op):
        same: dict[tuple, torch.Tensor] = {}  # views of the same elements have one small twin
        numbers: dict[int, int] = {}

        def first(value: Any) -> Any:
            is_tensor = isinstance(value, torch.Tensor)
            return same.setdefault(_place(value, numbers), value) if is_tensor else value

        yield twins.twins(op, jax.tree.map(first, given), twins.small)
    yield twins.twins(op, given, twins.whole(given))


def _pairs(op: Any, given: dict[str, Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pairs of written and other tensors; elements of lists with those at their position."""
    written = {a.name for a in op._schema.arguments if variants.is_mutated(a)}
    for name in written & given.keys():
        for other, value in given.items():
            pairs = _together(given[name], value)
            yield from (
                (a, b) for a, b in pairs if other != name or geometry.repeats(a.shape, a.stride())
            )


def _together(written: Any, other: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if isinstance(written, torch.Tensor):
        yield from ((written, tensor) for tensor in tensors_in(other) if is_jax(tensor))
    elif isinstance(written, list | tuple):
        others = other if isinstance(other, list | tuple) else [other] * len(written)
        for one, two in zip(written, others, strict=False):
            yield from _together(one, two)


def _reads_windows(out: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether overlapping windows are written while a call reads their storage."""
    is_shared = twins.storage_of(out) == twins.storage_of(other)
    return is_shared and geometry.may_overlap(out.shape, out.stride())


def _relation(a: torch.Tensor, b: torch.Tensor) -> str:
    """Return how two tensors overlap: ``apart``, ``whole`` (one is the other) or ``part``.

    As in PyTorch, only dense tensors count; others that share elements count as apart.
    """
    if a is b:
        return "part" if geometry.repeats(a.shape, a.stride()) else "whole"
    if not (a.numel() and b.numel()):
        return "apart"
    if twins.storage_of(a) != twins.storage_of(b):
        return "apart"
    first, second = twins.reach(a), twins.reach(b)
    if first[1] <= second[0] or second[1] <= first[0]:
        return "apart"
    if any(geometry.memory_order(t.shape, t.stride()) is None for t in (a, b)):
        return "apart"
    return "whole" if first == second and a.stride() == b.stride() else "part"


def _place(tensor: torch.Tensor, numbers: dict[int, int]) -> tuple:
    """Return the place of a tensor's elements in its storage, which has a number."""
    at = numbers.setdefault(twins.storage_of(tensor), len(numbers))
    offset = int(tensor.storage_offset())
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), offset, at
