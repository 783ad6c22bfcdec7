"""Dtypes that an operator refuses: the CPU's kernel is tried once for each combination.

PyTorch's meta functions let dtypes pass for which no kernel exists (a softmax of integers), and
masks and indices of most dtypes; JAX computes with all of them. So the first call of an operator
with bools, integers, complex numbers or unusual masks is tried on the CPU's own kernel
(:mod:`torch_jax.eager.twins`), and its error is raised; one that is refused is tried again, since a
dim may be in the error's words. Accelerators take more dtypes of floats than the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import torch

from torch_jax._private import pytorch
from torch_jax.budgets import ELEMENTS_TRIED_ON_CPU
from torch_jax.eager import cpu_error, twins
from torch_jax.memory.storage import tensors_in

# CUDA takes integers here, and libraries ask for the device before they cast for the CPU.
_TAKEN_BY_CUDA = frozenset({"aten::histc"})

_OF_MASKS = {
    "mask": (torch.bool,),
    "condition": (torch.bool,),
    "index": (torch.int64,),
    "indices": (torch.int64, torch.bool),
}

_taken: set[tuple] = set()  # the kinds of calls that the CPU takes


def refuse(op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise the CPU's error for the dtypes of a call, where it does not take them."""
    given = twins.by_name(op, args, kwargs)
    if not _is_asked(op, given):
        return
    form = (op, *given, *map(_form, given.values()))
    are_sizes = (type(n) is int for tensor in tensors_in(given) for n in tensor.shape)
    if form in _taken or not all(are_sizes):  # of a program for many sizes
        return
    tries, is_due = _wide_twins(op, given), functools.partial(_is_of_dtypes, op)
    error = pytorch.without_warnings(lambda: twins.verdict(op, tries, is_due))
    if error is None:
        _taken.add(form)
        if _unusual_masks(given):
            _have_warned(op, given)
    _raise(error, op, args, kwargs)


def _have_warned(op: Any, given: twins.Named) -> None:
    """Have the CPU's kernel warn of masks of bytes, once for each of them."""
    for named in _wide_twins(op, given):
        if pytorch.without_warnings(functools.partial(twins.refusal, op, named)) is None:
            twins.refusal(op, named)
            return


def refuse_outputs(
    op: Any, args: tuple, kwargs: dict[str, Any], results: dict[str, torch.dtype]
) -> bool:
    """Raise if the CPU cannot put these dtypes into ``out=``; return False if unknown."""

    def is_due(_error: Exception, named: twins.Named) -> bool:
        fitting = {name: named[name].to(dtype) for name, dtype in results.items()}
        return twins.refusal(op, named | fitting) is None

    tries = _twins(op, twins.by_name(op, args, kwargs)) if _may_run(op) else ()
    error = pytorch.without_warnings(lambda: twins.verdict(op, tries, is_due))
    _raise(error, op, args, kwargs)
    return error is None


def _raise(error: Exception | None, op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    if error is not None and error is not twins.UNKNOWN:
        raise cpu_error.described(error, op, args, kwargs)


def _is_asked(op: Any, given: dict[str, Any]) -> bool:
    """Return whether the CPU is tried: for operators of PyTorch's with other dtypes than floats."""
    if op._schema.name in _TAKEN_BY_CUDA or not _may_run(op):
        return False
    kinds = {getattr(value, "dtype", value) for value in jax.tree.leaves(given)}
    dtypes = {kind for kind in kinds if isinstance(kind, torch.dtype)}
    is_complex = any(isinstance(kind, complex) for kind in kinds)
    return is_complex or not all(d.is_floating_point for d in dtypes) or bool(_unusual_masks(given))


def _may_run(op: Any) -> bool:
    """Return whether an operator is PyTorch's, and does not draw from the user's generator."""
    return op.namespace == "aten" and not twins.draws_unseen(op)


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
    """Yield twins of the arguments one after the other, as the values of one may be refused.

    Zeros cannot be divided by, ones may be no index, and a small one may be too small.
    """
    are_few = sum(tensor.numel() for tensor in tensors_in(given)) <= ELEMENTS_TRIED_ON_CPU
    for most in (2,) * twins.can_be_small(op) + (ELEMENTS_TRIED_ON_CPU,) * are_few:
        for integer in (0, 1):
            yield twins.twins(op, given, functools.partial(twins.small, integer=integer, most=most))


def _unusual_masks(given: dict[str, Any]) -> list[str]:
    """Return the names of masks and indices of other dtypes than theirs."""
    return [
        name
        for name, usual in _OF_MASKS.items()
        if any(tensor.dtype not in usual for tensor in tensors_in(given.get(name)))
    ]


def _is_of_dtypes(op: Any, error: Exception, named: twins.Named) -> bool:
    """Return whether the CPU refuses the dtypes, and not the values or the sizes of the twins.

    Then it computes with masks and indices of their own dtypes, or with floats in place of all.
    """
    if " not implemented for '" in str(error):  # by a switch over dtypes
        return True
    usual = {name: _as_mask(named[name], _OF_MASKS[name]) for name in _unusual_masks(named)}
    if usual and twins.refusal(op, named | usual) is None:
        return True
    return twins.refusal(op, jax.tree.map(_as_float, named)) is None


def _as_mask(value: Any, usual: tuple[torch.dtype, ...]) -> Any:
    """Return twins of a usual dtype that select alike: shapes that disagree still do so."""

    def cast(one: torch.Tensor) -> torch.Tensor:
        is_mask = one.dtype in (torch.bool, torch.uint8) and torch.bool in usual
        return one.to(torch.bool if is_mask else usual[0])

    return jax.tree.map(cast, value)


def _as_float(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.ones_like(value, dtype=torch.float32)
    return torch.float32 if isinstance(value, torch.dtype) else value


def _wide(value: Any) -> Any:
    """Return short floats as float32: the CPU is not tried with them."""
    if isinstance(value, torch.Tensor):
        return value.to(_wide(value.dtype))
    is_float = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float32 if is_float and value.itemsize < 4 else value
