"""What the CPU says of a call that cannot be served here.

PyTorch's meta functions let some arguments pass that its kernels refuse, each in its own words and
by its own type of exception. So where a lowering fails, the CPU is asked for its error: it gets the
same call, on copies.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import torch

from torch_jax._private import pytorch
from torch_jax.core import errors, tracers
from torch_jax.memory.storage import is_jax, memory_of


def instead_of(error: Exception, op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception:
    """The CPU's error for a call that failed here, or ``error`` as PyTorch's type for it."""
    if isinstance(error, jax.errors.UnexpectedTracerError | tracers.TracedElsewhere):
        return tracers.outlived(f"a tensor of {errors.describe_call(op, args, kwargs)}")
    ours = errors.from_jax(error, op, args, kwargs)
    if isinstance(ours, torch.OutOfMemoryError | torch.linalg.LinAlgError):
        return ours
    if op.namespace == "torch_jax":  # no operator of the CPU's
        return ours
    found = _raised(op, args, kwargs)
    if found is None:
        return ours
    try:
        return type(found)(f"{str(found).rstrip()} (in {errors.describe_call(op, args, kwargs)})")
    except TypeError:  # an exception that is not made of a message
        return found


def _raised(op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception | None:
    """What the CPU's kernel raises for these arguments; None where it takes them."""
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
