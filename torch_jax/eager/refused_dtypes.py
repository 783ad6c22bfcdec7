"""Dtypes that an operator refuses: the CPU's kernel is tried once for each combination.

PyTorch's meta functions let dtypes pass for which no kernel exists (a softmax of integers), and JAX
computes with all of them. So the first call of an operator with such tensors is tried on the CPU's
own kernel (:mod:`torch_jax.eager.twins`), whose error is raised at each call of the kind.

Only bools, integers and complex numbers are tried: accelerators take more dtypes of floats than the
CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.budgets import ELEMENTS_TRIED_ON_CPU
from torch_jax.core import errors
from torch_jax.eager import checks, twins
from torch_jax.memory.storage import tensors_in

# CUDA takes integers here, and libraries ask for the device before they cast for the CPU.
_TAKEN_BY_CUDA = frozenset({"aten::histc"})

_answers: dict[tuple, Exception | None] = {}


def refuse(op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise the CPU's error for the dtypes of a call, where it does not take them."""
    given = dict(zip(twins.names_of(op), args, strict=False)) | kwargs
    if not _is_asked(op, given):
        return
    form = (op, *given, *map(_form, given.values()))
    if form not in _answers:
        sizes = [n for tensor in tensors_in(given) for n in tensor.shape]
        if not all(type(n) is int for n in sizes):  # of a program for many sizes
            return
        answer = pytorch.without_warnings(lambda: _ask(op, given))
        if answer is _UNKNOWN:
            return
        _answers[form] = answer
    error = _answers[form]
    if error is not None:
        raise type(error)(f"{error} (in {errors.describe_call(op, args, kwargs)})")


def refuse_outputs(
    op: Any, args: tuple, kwargs: dict[str, Any], results: dict[str, torch.dtype]
) -> bool:
    """Raise if the CPU cannot put these dtypes into ``out=``; return False if unknown."""
    given = dict(zip(twins.names_of(op), args, strict=False)) | kwargs
    error = pytorch.without_warnings(lambda: _ask_of_outputs(op, given, results))
    if error is not None and error is not _UNKNOWN:
        raise type(error)(f"{error} (in {errors.describe_call(op, args, kwargs)})")
    return error is None


def _ask_of_outputs(
    op: Any, given: dict[str, Any], results: dict[str, torch.dtype]
) -> Exception | None:
    """Return the CPU's error for outputs, if it takes those of the results' dtypes."""
    for named in _twins(op, given) if _may_run(op) else ():
        fitting = {name: named[name].to(dtype) for name, dtype in results.items()}
        if twins.refusal(op, named | fitting) is None:
            return twins.refusal(op, named)
    return _UNKNOWN


def _is_asked(op: Any, given: dict[str, Any]) -> bool:
    """Return whether the CPU is tried: for operators of PyTorch's with other dtypes than floats."""
    if op._schema.name in _TAKEN_BY_CUDA:
        return False
    return _may_run(op) and not all(t.is_floating_point for t in _dtypes(given.values()))


def _may_run(op: Any) -> bool:
    """Return whether an operator is PyTorch's, and does not draw from the user's generator."""
    draws = torch.Tag.nondeterministic_seeded in op.tags
    return op.namespace == "aten" and not (draws and "generator" not in twins.names_of(op))


def _dtypes(values: Iterable[Any]) -> Iterator[torch.dtype]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value.dtype
        elif isinstance(value, torch.dtype):
            yield value
        elif isinstance(value, complex):
            yield torch.complex64
        elif isinstance(value, list | tuple):
            yield from _dtypes(value)


def _form(value: Any) -> Any:
    """Return the key of a choice of kernel: dtypes and dims of tensors, types of numbers."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim()
    if isinstance(value, list | tuple):
        return tuple(dict.fromkeys(map(_form, value)))
    return value if isinstance(value, bool | str | torch.dtype | None) else type(value)


_UNKNOWN = RuntimeError("the CPU cannot say")


def _ask(op: Any, given: dict[str, Any]) -> Exception | None:
    """Return the CPU's error for the dtypes of a call, None, or ``_UNKNOWN``."""
    error: Exception = _UNKNOWN
    for named in _twins(op, given):
        named = {name: _wide(value) for name, value in named.items()}
        found = twins.refusal(op, named)
        if found is None:
            return None
        if " not implemented for '" in str(found):  # the end of a switch over dtypes
            return found.with_traceback(None)
        error = found if _is_of_dtypes(found, op, named) else _UNKNOWN
    return error.with_traceback(None)


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
    floats = {name: _as_float(value) for name, value in named.items()}
    return twins.refusal(op, floats) is None


def _with_small_integers(named: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with integers 0, 1, 2 … in place of those that a call is given."""
    count = itertools.count()
    return {name: next(count) if type(v) is int else v for name, v in named.items()}


def _as_float(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.ones_like(value, dtype=torch.float32)
    if isinstance(value, list | tuple):
        return [_as_float(one) for one in value]
    return torch.float32 if isinstance(value, torch.dtype) else value


def _wide(value: Any) -> Any:
    """Return short floats as float32: the CPU is not tried with them."""
    if isinstance(value, list | tuple):
        return [_wide(one) for one in value]
    if isinstance(value, torch.Tensor):
        return value.to(_wide(value.dtype))
    is_float = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float32 if is_float and value.itemsize < 4 else value
