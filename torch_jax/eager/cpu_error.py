"""The CPU's error for a call that cannot be served here.

PyTorch's meta functions let some arguments pass that its kernels refuse, each in its own words and
by its own type of exception. So where a lowering fails, the same call runs on the CPU, on copies,
for its error. Meta functions word their refusals in another way than the kernels, so those calls
run on the CPU, too, on tensors of the same geometry.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import torch

from torch_jax._private import pytorch
from torch_jax.budgets import ELEMENTS_REFUSED_BY_CPU
from torch_jax.core import errors, tracers
from torch_jax.eager import twins
from torch_jax.memory.storage import is_jax, memory_of, tensors_in


def instead_of(error: Exception, op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception:
    """Return the CPU's error for a call that failed here, or ``error`` as PyTorch's type for it."""
    if isinstance(error, jax.errors.UnexpectedTracerError | tracers.TracedElsewhere):
        return tracers.outlived(f"a tensor of {errors.describe_call(op, args, kwargs)}")
    ours = errors.from_jax(error, op, args, kwargs)
    if isinstance(ours, torch.OutOfMemoryError | torch.linalg.LinAlgError):
        return ours
    theirs = twins.on_cpu(op)
    found = None if theirs is None else _raised(theirs, args, kwargs)
    return ours if found is None else described(found, op, args, kwargs)


def described(error: Exception, op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception:
    """Return the CPU's error with the call in its message."""
    try:
        return type(error)(f"{str(error).rstrip()} (in {errors.describe_call(op, args, kwargs)})")
    except TypeError:  # an exception that does not take a message
        return error


def instead_of_metas(op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception | None:
    """Return the CPU's error for a call that a meta function refuses.

    None where the CPU has no kernel, computes, or runs out of memory on the way.
    """
    given = twins.by_name(op, args, kwargs)
    if twins.on_cpu(op) is not op or not _is_plain(given):
        return None
    found = twins.refusal(op, twins.twins(op, given, twins.whole))
    if found is None or "Could not run" in str(found) or "can't allocate memory" in str(found):
        return None
    found.add_note(f"in {errors.describe_call(op, args, kwargs)}")
    return found


def _is_plain(given: dict[str, Any]) -> bool:
    """Return whether tensors have known sizes, and few enough elements to be made again."""
    tensors = list(tensors_in(given))
    sizes = [n for t in tensors for n in (*t.shape, *t.stride())]
    count = sum(t.numel() for t in tensors)
    return set(map(type, sizes)) <= {int} and count <= ELEMENTS_REFUSED_BY_CPU


def _raised(op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception | None:
    """Return the error of the CPU's kernel for these arguments; None where it takes them."""
    state = torch.default_generator.get_state()
    try:
        with pytorch.no_dispatch_modes(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            op(*map(_on_cpu, args), **{name: _on_cpu(value) for name, value in kwargs.items()})
    except Exception as error:
        return error
    finally:
        torch.default_generator.set_state(state)
    return None


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not is_jax(value):
            return value.clone()
        if tracers.is_traced(memory_of(value)):  # the CPU's errors are about shapes and dtypes
            return torch.zeros(value.shape, dtype=value.dtype, device="cpu")
        return value.cpu()
    if isinstance(value, list | tuple):
        return type(value)(map(_on_cpu, value))
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return None if isinstance(value, torch.Generator) else value
