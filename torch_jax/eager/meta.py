"""An operator's outputs by PyTorch's meta functions: shapes, strides, dtypes, errors.

Running an operator on meta tensors checks its arguments as PyTorch does on every device and
computes nothing. It happens once per compiled entry, not per call.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from torch_jax._private import dynamo
from torch_jax.eager import refusals, twins
from torch_jax.memory import geometry


class Output(NamedTuple):
    """Geometry of one new tensor; ``stride`` is None where it is contiguous."""

    size: tuple[int, ...]
    stride: tuple[int, ...] | None
    dtype: torch.dtype


def infer(op: Any, args: tuple, kwargs: dict[str, Any]) -> list[Any] | None:
    """Return outputs by PyTorch's meta function, None without one; or raise the CPU's error.

    Where the CPU takes what the meta function refuses, the outputs are the CPU's.
    """
    dynamo.spare_imports()
    given, names = {k: _meta(v) for k, v in kwargs.items()}, twins.names_of(op)
    if "device" in names:
        given["device"] = torch.device("meta")
    plain = [v if n == "scalars" else _meta(v) for n, v in zip(names, args, strict=False)]
    try:
        with _in_any_order():
            result = op(*plain, **given)
    except NotImplementedError:
        return None
    except Exception as error:  # the CPU has the last word: a few meta functions refuse too much
        if (result := refusals.in_place_of_meta(op, args, kwargs)) is None:
            raise _explained(error) from error
        if isinstance(result, Exception):
            raise result from error
    aliased = [r.alias_info is not None for r in op._schema.returns]
    results = [result] if len(aliased) == 1 else list(result or ())
    return [_spec(r) for r, alias in zip(results, aliased, strict=True) if not alias]


@contextlib.contextmanager
def _in_any_order() -> Iterator[None]:
    """Have meta functions not speak of CUDA under ``use_deterministic_algorithms``."""
    if not (mode := torch.get_deterministic_debug_mode()):
        yield
        return
    torch.set_deterministic_debug_mode(0)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def _explained(error: Exception) -> Exception:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    of_kernel = frame.f_code.co_filename.endswith("_ops.py")  # in C++; Python raises other types
    odd = isinstance(error, ZeroDivisionError | AssertionError | ValueError)
    return RuntimeError(str(error)) if odd and not of_kernel else error


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return type(value)(_meta(v) for v in value)
    return None if isinstance(value, torch.Generator) else value


def is_channels_last(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether PyTorch takes strides for channels_last.

    As in ``suggest_memory_format``, they grow from the channels outwards, with or without gaps (the
    real part of a complex tensor has gaps); where sizes of 1 leave both orders possible, the answer
    is False.
    """
    if len(size) not in (4, 5) or stride[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(size) - 1, 1, -1), 0):
        ambiguous = dim == 0 and least == stride[1]
        if size[dim] == 0 or stride[dim] < least or ambiguous:
            return False
        least = stride[dim] * size[dim]
    return True


def _spec(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_spec(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return None
    size, stride = tuple(value.shape), value.stride()
    plain = stride == geometry.row_major(size) or geometry.memory_order(size, stride) is None
    return Output(size, None if plain and 0 not in size else stride, value.dtype)
