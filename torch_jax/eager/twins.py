"""Errors of the CPU's kernels for a call, tried on small tensors of the same dtypes.

PyTorch's meta functions check shapes and dtypes. Only the CPU's kernels refuse other faults:
numbers that do not fit a dtype, slopes and widths that must be positive, memory that overlaps. The
kernels run on *twins* of the arguments, which cost some microseconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import jax
import torch

from torch_jax._private import pytorch
from torch_jax.budgets import ELEMENTS_MADE_ZERO

Make = Callable[[torch.Tensor], torch.Tensor]
Named = dict[str, Any]

# Integers that give a number of elements, which twins have less of; and those that do not depend on
# the sizes of tensors. CPU kernels do not check any others (the ``C`` of a norm).
_COUNTS = frozenset({"size", "steps", "window_length", "pad", "bins"})
_UNSIZED = frozenset({"dim", "axis", "reduction", "compute_mode", "growth_interval"})
_NOT_FOR_CPU = frozenset({"device", "pin_memory", "layout"})

# Random operators draw from this one, so that the user's generators do not move.
_generator = torch.Generator("cpu")

UNKNOWN = RuntimeError("the CPU cannot say")


def on_cpu(op: Any) -> Any:
    """Return the CPU's overload for one that is called here; None where it has none."""
    if op.namespace != "torch_jax":
        return op
    return torch.ops.aten.copy_.default if op.name() == "torch_jax::write_" else None


def names_of(op: Any) -> list[str]:
    """Return the names of an overload's arguments, in order."""
    return [argument.name for argument in op._schema.arguments]


def by_name(op: Any, args: tuple, kwargs: Named) -> Named:
    """Return the arguments of a call by their names."""
    return dict(zip(names_of(op), args, strict=False)) | kwargs


def draws_unseen(op: Any) -> bool:
    """Return whether an operator takes random numbers, but no generator: it moves the user's."""
    return torch.Tag.nondeterministic_seeded in op.tags and "generator" not in names_of(op)


def small(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor of this dtype, at most two elements a dim; ones, or index 0."""
    size = [min(n, 2) for n in tensor.shape]
    make = torch.ones if tensor.dtype.is_floating_point or tensor.dtype.is_complex else torch.zeros
    return make(size, dtype=tensor.dtype, device="cpu")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor of zeros of the same geometry; a large one has untouched memory.

    A kernel that refuses shapes does so before it reads or writes anything.
    """
    size, stride = tuple(tensor.shape), tensor.stride()
    twin = torch.empty_strided(size, stride, dtype=tensor.dtype, device="cpu")
    return twin.zero_() if tensor.numel() < ELEMENTS_MADE_ZERO else twin


def twins(op: Any, given: Named, make: Make, fewer: bool = True) -> Named:
    """Return arguments by name as the CPU's kernel takes them.

    ``make`` makes new tensors; counts of elements are small ones, too, unless ``fewer`` is False.
    """
    made: dict[int, torch.Tensor] = {}  # one tensor twice among the arguments has one twin

    def twin(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in made:
            made[id(value)] = make(value)
        return made[id(value)]

    taken = {name: value for name, value in given.items() if name not in _NOT_FOR_CPU}
    named: Named = jax.tree.map(twin, taken)
    for argument in op._schema.arguments:  # x + 1 is add.Tensor, which takes a tensor here
        value = named.get(argument.name)
        if str(argument.real_type) == "Tensor" and isinstance(value, bool | int | float | complex):
            named[argument.name] = torch.tensor(value, device="cpu")
    if "generator" in names_of(op):
        named["generator"] = _generator
    if not fewer:
        return named
    return named | {name: jax.tree.map(_few, named[name]) for name in _COUNTS & named.keys()}


def can_be_small(op: Any) -> bool:
    """Return whether an operator takes smaller tensors too: no argument gives their sizes."""
    integers = {a.name for a in op._schema.arguments if "int" in str(a.real_type)}
    return integers <= _COUNTS | _UNSIZED


def _few(count: Any) -> Any:
    return min(max(count, 0), 2) if type(count) is int else count


def refusal(op: Any, named: Named) -> Exception | None:
    """Return the error of the CPU's kernel for these arguments, None where it computes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the twins' sizes are not the user's
            pytorch.call_on_cpu(op, named)
    except Exception as error:
        return error.with_traceback(None)
    return None


def verdict(op: Any, named: Named, others: Iterable[Named]) -> Exception | None:
    """Return the CPU's error for what twins differ in from ``others``; None where it computes.

    A refusal may be due to the twins, which are smaller and hold other values than the tensors. It
    is not if the CPU computes with some of the others; else the answer is ``UNKNOWN``.
    """
    error = refusal(op, named)
    if error is None or any(refusal(op, other) is None for other in others):
        return error
    return UNKNOWN
