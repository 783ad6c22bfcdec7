"""The CPU's error for a call that cannot be served here.

Where a lowering fails, the same call runs on the CPU, on copies, for its words and its type of
exception. Meta functions word their refusals in another way than the kernels, so calls that they
refuse run on the CPU, too, on tensors of the same geometry.
"""

from __future__ import annotations

from typing import Any

import jax
import torch

from torch_jax.budgets import ELEMENTS_REFUSED_BY_CPU
from torch_jax.core import errors, tracers
from torch_jax.eager import twins
from torch_jax.memory.storage import is_jax, memory_of, tensors_in


def instead_of(error: Exception, op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception:
    """Return the CPU's error for a call that failed here, or ``error`` as PyTorch's type for it."""
    if isinstance(error, jax.errors.UnexpectedTracerError | tracers.TracedElsewhere):
        return tracers.outlived(f"a tensor of {errors.describe_call(op, args, kwargs)}")
    ours = errors.from_jax(error, op, args, kwargs)
    if isinstance(ours, torch.OutOfMemoryError):
        return ours
    theirs = twins.on_cpu(op)
    if theirs is None:
        return ours
    found = _refusal(theirs, twins.by_name(theirs, args, kwargs), _copy)
    return ours if found is None else described(found, op, args, kwargs)


def described(error: Exception, op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception:
    """Return the CPU's error with the call in its message."""
    try:
        return type(error)(f"{str(error).rstrip()} (in {errors.describe_call(op, args, kwargs)})")
    except TypeError:  # an exception that does not take a message
        return error


def instead_of_metas(op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception | None:
    """Return the CPU's error for a call that a meta function refuses, None where it has none."""
    given = twins.by_name(op, args, kwargs)
    if twins.on_cpu(op) is not op or not _is_plain(given):
        return None
    found = _refusal(op, given, twins.whole(given))
    if found is not None:
        found.add_note(f"in {errors.describe_call(op, args, kwargs)}")
    return found


def _is_plain(given: dict[str, Any]) -> bool:
    """Return whether tensors have known sizes, and few enough elements to be made again."""
    tensors = list(tensors_in(given))
    sizes = [n for t in tensors for n in (*t.shape, *t.stride())]
    count = sum(t.numel() for t in tensors)
    return set(map(type, sizes)) <= {int} and count <= ELEMENTS_REFUSED_BY_CPU


def _refusal(op: Any, given: dict[str, Any], make: twins.Make) -> Exception | None:
    """Return the error of the CPU's kernel.

    None where the CPU has no kernel, computes, or runs out of memory on the way.
    """
    state = torch.default_generator.get_state()  # of which operators without a generator draw
    found = twins.refusal(op, twins.twins(op, given, make, fewer=False))
    torch.default_generator.set_state(state)
    unknown = "Could not run" in str(found) or "can't allocate memory" in str(found)
    return None if unknown else found


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if not is_jax(tensor):
        return tensor.clone()
    if tracers.is_traced(memory_of(tensor)):  # the CPU's errors are about shapes and dtypes
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
    return tensor.cpu()
