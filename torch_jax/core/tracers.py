"""The limit of a traced program, which cannot look at values: its error, and ways around.

Under a trace (``jax.jit``, ``jax.make_jaxpr``) a storage holds a tracer, which has a shape and a
dtype but no elements. An operator whose output shape depends on values, and ``Tensor.item``, need
them. The error names the line of the user's code, and an operator of static shape.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import torch

from torch_jax._private import jax_core
from torch_jax.core import errors
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Lent, Node


class DataDependentError(RuntimeError):
    """An operator needs the values of tensors that a trace has only shapes of.

    >>> from torch_jax.memory.storage import wrap
    >>> def program(array):
    ...     return torch.nonzero(wrap(array, torch.float32)).untyped_storage().array
    >>> try:
    ...     jax.make_jaxpr(program)(jax.numpy.ones(3))
    ... except DataDependentError as error:
    ...     print("torch.nonzero_static" in str(error))
    True
    """


class TracedElsewhere(Exception):
    """A memory is in another thread's trace or program for a moment, or was replaced meanwhile."""


class NotTraceableError(RuntimeError):
    """A function under :func:`torch_jax.jit` does work that a compiled call could not repeat."""


_ITEM_INSTEAD = (
    "keep the value a tensor (torch.where, torch.cond for control flow), "
    "or return it and look at it outside"
)

_LIBRARIES = (
    *(str(Path(str(module.__file__)).parent) for module in (torch, jax, sys.modules["torch_jax"])),
    contextlib.__file__,
)


def is_traced(value: Any) -> bool:
    """Return whether an array is a tracer."""
    return isinstance(value, jax.core.Tracer)


def is_traced_elsewhere(values: Iterable[Any]) -> bool:
    """Return whether an array is recorded, lent, or traced by another thread: a wait may help."""
    here = ACTIVE.tracer is not None or not jax_core.is_outside_traces()
    return any(type(v) in (Lent, Node) or (not here and is_traced(v)) for v in values)


def wants_a_value(error: Exception) -> bool:
    """Return whether JAX's error says that the value of a tracer was read."""
    kinds = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)
    return isinstance(error, (*kinds, jax.errors.TracerIntegerConversionError))


def user_line() -> str:
    """Return ``file:line, in function`` of the innermost frame outside torch, jax and torch_jax."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((*_LIBRARIES, "<")):
            return f"{code.co_filename}:{frame.f_lineno}, in {code.co_name}"
        frame = frame.f_back
    return "no line of user code"


def needs_values(op: Any, args: tuple, kwargs: dict[str, Any], instead: str) -> DataDependentError:
    """Return the error for an operator that was called under a trace and needs values."""
    return DataDependentError(
        f"{errors.describe_call(op, args, kwargs)} needs values, which are not known while a "
        f"program is traced ({user_line()}). Instead, "
        f"{instead or 'call it outside the traced function'}."
    )


def outlived(what: str) -> NotTraceableError:
    """Return the error for a tensor or an array of a trace that has ended."""
    return NotTraceableError(f"{what} {errors.ENDED} ({user_line()})")


def shown(array: Any) -> str:
    """Return the dtype and the shape of an array, for messages."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def needs_value_on_host(array: Any) -> RuntimeError:
    """Return the error for ``item``, ``if``, printing or copying to the CPU under a trace."""
    if ACTIVE.tracer is None and jax_core.is_outside_traces():
        return outlived(f"a {shown(array)} tensor")
    return DataDependentError(
        f"the value of a {shown(array)} tensor is asked for, which is not known while a "
        f"program is traced ({user_line()}). Instead, {_ITEM_INSTEAD}."
    )
