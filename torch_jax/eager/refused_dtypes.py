"""Dtypes that an operator refuses: the CPU's kernel is tried once for each combination.

PyTorch's meta functions let dtypes pass for which no kernel exists (a softmax of integers), and
masks and indices of most dtypes; JAX computes with all of them. So the first call of an operator
with such tensors is tried on the CPU's own kernel (:mod:`torch_jax.eager.twins`), and its error is
raised. Each call that is refused is tried again: a dim, for one, may be in the error's words.

Of other tensors only bools, integers and complex numbers are tried: accelerators take more dtypes
of floats than the CPU.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import torch

from torch_jax._private import pytorch
from torch_jax.budgets import ELEMENTS_TRIED_ON_CPU
from torch_jax.core import errors
from torch_jax.eager import checks, twins
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
    answer = pytorch.without_warnings(lambda: _ask(op, given))
    if answer is None:
        _taken.add(form)
        if _unusual_masks(given):
            _have_warned(op, given)
    elif answer is not twins.UNKNOWN:
        _raise(answer, op, args, kwargs)


def _have_warned(op: Any, given: dict[str, Any]) -> None:
    """Have the CPU's kernel warn of masks of bytes, once for each of them."""
    tried = (jax.tree.map(_wide, named) for named in _twins(op, given))
    for named in tried:
        if pytorch.without_warnings(functools.partial(twins.refusal, op, named)) is None:
            twins.refusal(op, named)
            return


def refuse_outputs(
    op: Any, args: tuple, kwargs: dict[str, Any], results: dict[str, torch.dtype]
) -> bool:
    """Raise if the CPU cannot put these dtypes into ``out=``; return False if unknown."""
    given = twins.by_name(op, args, kwargs)
    error = pytorch.without_warnings(lambda: _ask_of_outputs(op, given, results))
    if error is twins.UNKNOWN:
        return False
    _raise(error, op, args, kwargs)
    return True


def _raise(error: Exception | None, op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    if error is not None:
        raise type(error)(f"{error} (in {errors.describe_call(op, args, kwargs)})")


def _ask_of_outputs(
    op: Any, given: dict[str, Any], results: dict[str, torch.dtype]
) -> Exception | None:
    """Return the CPU's error for outputs, if it takes those of the results' dtypes."""
    for named in _twins(op, given) if _may_run(op) else ():
        fitting = {name: named[name].to(dtype) for name, dtype in results.items()}
        if twins.refusal(op, named | fitting) is None:
            return twins.refusal(op, named)
    return twins.UNKNOWN


def _is_asked(op: Any, given: dict[str, Any]) -> bool:
    """Return whether the CPU is tried: for operators of PyTorch's with other dtypes than floats."""
    if op._schema.name in _TAKEN_BY_CUDA or not _may_run(op):
        return False
    return not all(map(_is_float, jax.tree.leaves(given))) or bool(_unusual_masks(given))


def _may_run(op: Any) -> bool:
    """Return whether an operator is PyTorch's, and does not draw from the user's generator."""
    return op.namespace == "aten" and not twins.draws_unseen(op)


def _is_float(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype.is_floating_point
    return value.is_floating_point if isinstance(value, torch.dtype) else type(value) is not complex


def _form(value: Any) -> Any:
    """Return the key of a choice of kernel: dtypes and dims of tensors, types of numbers."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim()
    if isinstance(value, list | tuple):
        return tuple(dict.fromkeys(map(_form, value)))
    return value if isinstance(value, bool | str | torch.dtype | None) else type(value)


def _ask(op: Any, given: dict[str, Any]) -> Exception | None:
    """Return the CPU's error for the dtypes of a call, None, or ``UNKNOWN``."""
    error: Exception = twins.UNKNOWN
    for named in _twins(op, given):
        named = jax.tree.map(_wide, named)
        found = twins.refusal(op, named)
        if found is None or " not implemented for '" in str(found):  # by a switch over dtypes
            return found
        if _is_of_masks(op, named):
            return found
        error = found if _is_of_dtypes(found, op, named) else twins.UNKNOWN
    return error


def _twins(op: Any, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield twins of the arguments one after the other, as the values of one may be refused.

    Zeros cannot be divided by, ones may be no index, and a small one may be too small. The value in
    the place of a number varies, too: answers are remembered for all numbers.
    """
    are_few = sum(tensor.numel() for tensor in tensors_in(given)) <= ELEMENTS_TRIED_ON_CPU
    for most in (2,) * twins.can_be_small(op) + (ELEMENTS_TRIED_ON_CPU,) * are_few:
        for value in (0, 1):

            def make(tensor: torch.Tensor, most: int = most, value: int = value) -> torch.Tensor:
                size = [min(n, most) for n in tensor.shape]
                return torch.full(size, value, dtype=tensor.dtype, device="cpu")

            named = twins.twins(op, given, make)
            for name, twin in named.items():
                if isinstance(twin, torch.Tensor) and not isinstance(given[name], torch.Tensor):
                    twin.fill_(value)  # a number in the place of a tensor
            yield named


def _unusual_masks(given: dict[str, Any]) -> list[str]:
    """Return the names of masks and indices of other dtypes than theirs."""
    return [
        name
        for name, usual in _OF_MASKS.items()
        if any(tensor.dtype not in usual for tensor in tensors_in(given.get(name)))
    ]


def _is_of_masks(op: Any, named: dict[str, Any]) -> bool:
    """Return whether the CPU computes with masks and indices of their own dtypes."""
    usual = {name: _as_mask(named[name], _OF_MASKS[name]) for name in _unusual_masks(named)}
    return bool(usual) and twins.refusal(op, named | usual) is None


def _as_mask(value: Any, usual: tuple[torch.dtype, ...]) -> Any:
    """Return twins of a usual dtype that select alike: shapes that disagree still do so."""

    def cast(one: torch.Tensor) -> torch.Tensor:
        is_mask = one.dtype in (torch.bool, torch.uint8) and torch.bool in usual
        return one.to(torch.bool if is_mask else usual[0])

    return jax.tree.map(cast, value)


def _is_of_dtypes(error: Exception, op: Any, named: dict[str, Any]) -> bool:
    """Return whether the CPU computes with floats in place of all dtypes.

    Then it refuses the dtypes, and not the values or the sizes of the twins. Numbers may be the
    reason as well, which :mod:`torch_jax.eager.checks` handles.
    """
    numbers = [a.name for a in op._schema.arguments if checks.takes_number(a)]
    given = any(named.get(name) is not None for name in numbers)
    if given and not isinstance(error, NotImplementedError):
        return False
    if twins.refusal(op, _with_small_integers(named)) is None:  # these were the reason
        return False
    return twins.refusal(op, jax.tree.map(_as_float, named)) is None


def _with_small_integers(named: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with integers 0, 1, 2 … in place of those that a call is given."""
    count = itertools.count()
    return {name: next(count) if type(v) is int else v for name, v in named.items()}


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
