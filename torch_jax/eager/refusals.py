"""Calls that the CPU refuses: its kernel is tried on twins, and its error raised.

PyTorch's meta functions let dtypes pass for which no kernel exists (a softmax of integers), masks
and indices of most dtypes, and writes to memory that the same call reads; JAX computes with all of
them. So each new combination is tried on the CPU's own kernel (:mod:`torch_jax.eager.twins`). One
that is refused is tried again, since a dim may be in the error's words. Where a lowering or a meta
function fails, the CPU has the words and the type of the exception.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import torch

from torch_jax._private import pytorch
from torch_jax.budgets import ELEMENTS_REFUSED_BY_CPU, ELEMENTS_TRIED_ON_CPU, ENTRIES_REMEMBERED
from torch_jax.core import errors, tracers
from torch_jax.eager import twins, variants
from torch_jax.memory import geometry
from torch_jax.memory.storage import is_jax, memory_of, tensors_in

# CUDA takes integers here, and libraries ask for the device before they cast for the CPU.
_TAKEN_BY_CUDA = frozenset({"aten::histc"})

_OF_MASKS = {
    "mask": (torch.bool,),
    "condition": (torch.bool,),
    "index": (torch.int64,),
    "indices": (torch.int64, torch.bool),
}

_taken: set[tuple] = set()  # the kinds of calls that the CPU takes


def described(error: Exception, op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception:
    """Return the CPU's error with the call in its message."""
    try:
        return type(error)(f"{str(error).rstrip()} (in {errors.describe_call(op, args, kwargs)})")
    except TypeError:  # an exception that does not take a message
        return error


def _raise(error: Exception | None, op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    if error is not None and error is not twins.UNKNOWN:
        raise described(error, op, args, kwargs)


def _take(known: tuple) -> None:
    if len(_taken) >= ENTRIES_REMEMBERED:
        _taken.clear()
    _taken.add(known)


# Calls that fail here.


def instead_of(error: Exception, op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception:
    """Return the CPU's error for a call that failed here, or ``error`` as PyTorch's type for it."""
    if isinstance(error, jax.errors.UnexpectedTracerError | tracers.TracedElsewhere):
        return tracers.outlived(f"a tensor of {errors.describe_call(op, args, kwargs)}")
    ours = errors.from_jax(error, op, args, kwargs)
    return ours if isinstance(ours, torch.OutOfMemoryError) else of_cpu(op, args, kwargs) or ours


def of_cpu(op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception | None:
    """Return the error that the CPU raises for a call, of the same values; None without one."""
    if (theirs := twins.on_cpu(op)) is None:
        return None
    found = _tried(theirs, twins.by_name(theirs, args, kwargs), _copy)
    return described(found, op, args, kwargs) if isinstance(found, Exception) else None


def in_place_of_meta(op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return what the CPU gives for a call that a meta function refuses, or its error, or None."""
    given = twins.by_name(op, args, kwargs)
    tensors = list(tensors_in(given))
    are_sizes = {type(n) for t in tensors for n in (*t.shape, *t.stride())} <= {int}
    are_few = are_sizes and sum(t.numel() for t in tensors) <= ELEMENTS_REFUSED_BY_CPU
    if twins.on_cpu(op) is not op or not are_few:
        return None
    found = _tried(op, given, twins.whole(given))
    if isinstance(found, Exception):
        found.add_note(f"in {errors.describe_call(op, args, kwargs)}")
    elif torch.Tag.nondeterministic_seeded in op.tags:  # JAX draws no empty tensors of integers
        return None
    return found


def _tried(op: Any, given: twins.Named, make: twins.Make) -> Any:
    """Return what the CPU gives, or its error; None where it has no kernel or no memory."""
    found = twins.tried(op, twins.twins(op, given, make, fewer=False))
    text = str(found) if isinstance(found, Exception) else ""
    return None if "Could not run" in text or "can't allocate memory" in text else found


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if not is_jax(tensor):
        return tensor.clone()
    if tracers.is_traced(memory_of(tensor)):  # the CPU's errors are about shapes and dtypes
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
    return tensor.cpu()


# Dtypes: accelerators take more floats than the CPU, which is tried with other dtypes alone.


def check_dtypes(op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise the CPU's error for the dtypes of a call, where it does not take them."""
    given = twins.by_name(op, args, kwargs)
    if op._schema.name in _TAKEN_BY_CUDA or op.namespace != "aten" or not _are_tried(given):
        return
    form = (op, *given, *map(_form, given.values()))
    are_sizes = (type(n) is int for tensor in tensors_in(given) for n in tensor.shape)
    if form in _taken or not all(are_sizes):  # of a program for many sizes
        return
    error = twins.verdict(op, _wide_twins(op, given), functools.partial(_is_of_dtypes, op))
    if error is None:
        _take(form)
        if _unusual_masks(given):  # the CPU warns of masks of bytes
            tries = (one for one in _wide_twins(op, given) if twins.refusal(op, one) is None)
            pytorch.call_on_cpu(op, next(tries))
    _raise(error, op, args, kwargs)


def check_outputs(
    op: Any, args: tuple, kwargs: dict[str, Any], results: dict[str, torch.dtype]
) -> bool:
    """Raise if the CPU cannot put these dtypes into ``out=``; return False if unknown."""

    def is_due(_error: Exception, named: twins.Named) -> bool:
        fitting = {name: named[name].to(dtype) for name, dtype in results.items()}
        return twins.refusal(op, named | fitting) is None

    tries = _twins(op, twins.by_name(op, args, kwargs)) if op.namespace == "aten" else ()
    error = twins.verdict(op, tries, is_due)
    _raise(error, op, args, kwargs)
    return error is None


def _are_tried(given: twins.Named) -> bool:
    """Return whether a call has other dtypes than floats of one, or unusual masks."""
    kinds = [_wide(getattr(value, "dtype", value)) for value in jax.tree.leaves(given)]
    dtypes = {kind for kind in kinds if isinstance(kind, torch.dtype)}
    if any(isinstance(kind, complex) for kind in kinds) or _unusual_masks(given):
        return True
    return len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes)


def _form(value: Any) -> Any:
    """Return the key of a choice of kernel: dtypes and dims of tensors, types of numbers."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim()
    if isinstance(value, list | tuple):
        return tuple(dict.fromkeys(map(_form, value)))
    return value if isinstance(value, bool | str | torch.dtype | None) else type(value)


def _wide_twins(op: Any, given: twins.Named) -> Iterator[twins.Named]:
    return (jax.tree.map(_wide, named) for named in _twins(op, given))


def _twins(op: Any, given: twins.Named) -> Iterator[twins.Named]:
    """Yield twins of several values: zeros cannot be divided by, and ones may be no index."""
    are_few = sum(tensor.numel() for tensor in tensors_in(given)) <= ELEMENTS_TRIED_ON_CPU
    for most in (2,) * twins.can_be_small(op) + (ELEMENTS_TRIED_ON_CPU,) * are_few:
        for integer in (0, 1):
            yield twins.twins(op, given, functools.partial(twins.small, integer=integer, most=most))


def _unusual_masks(given: twins.Named) -> dict[str, tuple[torch.dtype, ...]]:
    """Return the usual dtypes, by name, of masks and indices of others."""
    return {
        name: usual
        for name, usual in _OF_MASKS.items()
        if any(tensor.dtype not in usual for tensor in tensors_in(given.get(name)))
    }


def _is_of_dtypes(op: Any, error: Exception, named: twins.Named) -> bool:
    """Return whether the CPU refuses the dtypes: with usual masks, floats or int64 it computes."""
    if " not implemented for '" in str(error):  # by a switch over dtypes
        return True
    usual = {name: _as_mask(named[name], of) for name, of in _unusual_masks(named).items()}
    if usual and twins.refusal(op, named | usual) is None:
        return True
    others = (jax.tree.map(cast, named) for cast in (_as_float, _as_integer))
    return any(twins.refusal(op, other) is None for other in others)


def _as_mask(value: Any, usual: tuple[torch.dtype, ...]) -> Any:
    """Return twins of a usual dtype that select alike: shapes that disagree still do so."""

    def cast(one: torch.Tensor) -> torch.Tensor:
        is_mask = one.dtype in (torch.bool, torch.uint8) and torch.bool in usual
        return one.to(torch.bool if is_mask else usual[0])

    return jax.tree.map(cast, value)


def _as_float(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.ones_like(value, dtype=torch.float32)
    if isinstance(value, complex):
        return 1.0
    return torch.float32 if isinstance(value, torch.dtype) else value


def _as_integer(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype in (torch.bool, torch.uint8):  # masks
        return value
    return value.long()


def _wide(value: Any) -> Any:
    """Return short floats as float32: the CPU is not tried with them."""
    if isinstance(value, torch.Tensor):
        return value.to(_wide(value.dtype))
    is_float = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float32 if is_float and value.itemsize < 4 else value


# Memory: each operator has rules of its own. What is written may be a whole input, but no part of
# one; where a kernel gathers, not even that. Calls that the CPU takes are computed here as if all
# were read before anything is written. Windows that overlap are refused: PyTorch promises no order
# in which their elements are written.


def check_memory(op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise where the CPU refuses a call because of the memory that it writes."""
    numbers: dict[int, int] = {}  # of the storages: addresses come and go
    places = [_place(t, numbers) for t in tensors_in((args, kwargs)) if is_jax(t)]
    known = (op, *places)
    theirs = twins.on_cpu(op)
    if known in _taken or theirs is None:
        return
    given = twins.by_name(theirs, args, kwargs)
    pairs = list(_pairs(theirs, given))
    read = [out for out, other in pairs if twins.storage_of(out) == twins.storage_of(other)]
    if variants.is_out(theirs) and any(geometry.may_overlap(t.shape, t.stride()) for t in read):
        raise RuntimeError(errors.SHARED)
    kinds = set(itertools.starmap(_relation, pairs)) - {"apart"}
    tries = _shared_twins(theirs, given, "part" in kinds) if kinds else ()
    error = twins.verdict(theirs, tries, lambda error, _: "single memory location" in str(error))
    _raise(error, op, args, kwargs)
    _take(known)


def _shared_twins(op: Any, given: twins.Named, is_of_parts: bool) -> Iterator[twins.Named]:
    """Yield small twins, which may be refused for their sizes, and twins of the same geometry."""
    if not is_of_parts and twins.can_be_small(op):
        same: dict[tuple, torch.Tensor] = {}  # views of the same elements have one small twin
        numbers: dict[int, int] = {}

        def first(value: Any) -> Any:
            is_tensor = isinstance(value, torch.Tensor)
            return same.setdefault(_place(value, numbers), value) if is_tensor else value

        yield twins.twins(op, jax.tree.map(first, given), twins.small)
    yield twins.twins(op, given, twins.whole(given))


def _pairs(op: Any, given: twins.Named) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pairs of written and other tensors; elements of lists with those at their position."""
    written = {a.name for a in op._schema.arguments if variants.is_mutated(a)}
    for name in written & given.keys():
        for other, value in given.items():
            for a, b in _together(given[name], value):
                if other != name or geometry.repeats(a.shape, a.stride()):
                    yield a, b


def _together(written: Any, other: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if isinstance(written, torch.Tensor):
        yield from ((written, tensor) for tensor in tensors_in(other) if is_jax(tensor))
    elif isinstance(written, list | tuple):
        others = other if isinstance(other, list | tuple) else [other] * len(written)
        for one, two in zip(written, others, strict=False):
            yield from _together(one, two)


def _relation(a: torch.Tensor, b: torch.Tensor) -> str:
    """Return how tensors overlap: ``apart`` (or not dense), ``whole`` (the same) or ``part``."""
    if a is b:
        return "part" if geometry.repeats(a.shape, a.stride()) else "whole"
    first, second = twins.reach(a), twins.reach(b)
    if (
        not (a.numel() and b.numel())
        or twins.storage_of(a) != twins.storage_of(b)
        or first[1] <= second[0]
        or second[1] <= first[0]
        or any(geometry.memory_order(t.shape, t.stride()) is None for t in (a, b))
    ):
        return "apart"
    return "whole" if first == second and a.stride() == b.stride() else "part"


def _place(tensor: torch.Tensor, numbers: dict[int, int]) -> tuple:
    """Return the place of a tensor's elements in its storage, which has a number."""
    at = numbers.setdefault(twins.storage_of(tensor), len(numbers))
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), at
