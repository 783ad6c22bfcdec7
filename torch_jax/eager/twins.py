"""Errors of the CPU's kernels for a call, tried on other tensors of the same dtypes.

Only the CPU's kernels refuse numbers that do not fit a dtype, slopes that must be positive, or
memory that overlaps. They run on *twins* of the arguments: small ones, which cost microseconds, or
ones of the same geometry.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import torch

from torch_jax._private import pytorch
from torch_jax.memory.storage import span, tensors_in

Make = Callable[[torch.Tensor], torch.Tensor]
Named = dict[str, Any]

# Integers that give a number of elements, which twins have less of; and those that do not depend on
# the sizes of tensors. CPU kernels do not check any others (the ``C`` of a norm).
_COUNTS = frozenset({"size", "steps", "window_length", "pad", "bins"})
_UNSIZED = frozenset(
    {"dim", "axis", "reduction", "compute_mode", "growth_interval", "low", "high", "from", "to"}
)
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


def _draws_unseen(op: Any) -> bool:
    """Return whether an operator takes random numbers, but no generator: it moves the user's."""
    return torch.Tag.nondeterministic_seeded in op.tags and "generator" not in names_of(op)


def small(tensor: torch.Tensor, integer: int = 0, most: int = 2) -> torch.Tensor:
    """Return a CPU tensor of this dtype, at most two elements a dim; ones, or an integer."""
    is_integer = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    size = [min(n, most) for n in tensor.shape]
    return torch.full(size, integer if is_integer else 1, dtype=tensor.dtype, device="cpu")


def whole(given: Any) -> Make:
    """Return a maker of CPU tensors of the same geometry, which share memory as the given ones do.

    They are zeros, which the system makes where a kernel touches them.
    """
    ends: dict[int, list[int]] = {}
    for tensor in tensors_in(given):
        ends.setdefault(storage_of(tensor), []).extend(reach(tensor))
    begins = {at: min(places) // 16 * 16 for at, places in ends.items()}  # aligned for any dtype
    sizes = {at: max(places) - begins[at] for at, places in ends.items()}
    memories = {at: torch.from_numpy(np.zeros(n, np.uint8)) for at, n in sizes.items()}

    def make(tensor: torch.Tensor) -> torch.Tensor:
        at = storage_of(tensor)
        offset = (reach(tensor)[0] - begins[at]) // tensor.itemsize
        twin = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return twin.set_(memories[at].untyped_storage(), offset, tensor.shape, tensor.stride())

    return make


def storage_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage."""
    return tensor.untyped_storage()._cdata


def reach(tensor: torch.Tensor) -> tuple[int, int]:
    """Return begin and end of a tensor's elements in its storage, in bytes."""
    begin = int(tensor.storage_offset())
    end = span(tensor.shape, tensor.stride(), begin)
    return begin * tensor.itemsize, end * tensor.itemsize


def twins(op: Any, given: Named, make: Make, fewer: bool = True) -> Named:
    """Return arguments by name for the CPU's kernel, by ``make``; small counts if ``fewer``."""
    once = functools.cache(make)  # one tensor twice among the arguments has one twin
    taken = {name: value for name, value in given.items() if name not in _NOT_FOR_CPU}
    named: Named = jax.tree.map(
        lambda value: once(value) if isinstance(value, torch.Tensor) else value, taken
    )
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


def tried(op: Any, named: Named, warns: bool = False) -> Any:
    """Return what the CPU's kernel gives for these arguments, or the error that it raises.

    It does not warn, unless asked to: the twins' sizes are not the user's.
    """
    state = torch.default_generator.get_state() if _draws_unseen(op) else None
    try:
        call = functools.partial(pytorch.call_on_cpu, op, named)
        return call() if warns else pytorch.without_warnings(call)
    except Exception as error:
        return error.with_traceback(None)
    finally:
        if state is not None:
            torch.default_generator.set_state(state)


def refusal(op: Any, named: Named, warns: bool = False) -> Exception | None:
    """Return the error of the CPU's kernel for these arguments, None where it computes."""
    found = tried(op, named, warns)
    return found if isinstance(found, Exception) else None


def verdict(
    op: Any, tries: Iterable[Named], is_due: Callable[[Exception, Named], bool]
) -> Exception | None:
    """Return the CPU's error for what is asked, None where it computes.

    A refusal may be due to the twins, which are smaller and hold other values than the tensors. So
    each is tried, and the last error that is due counts, which may say sizes; without one the
    answer is ``UNKNOWN``.
    """
    answer: Exception = UNKNOWN
    for named in tries:
        if (error := refusal(op, named)) is None:
            return None
        if is_due(error, named):
            answer = error
    return answer
