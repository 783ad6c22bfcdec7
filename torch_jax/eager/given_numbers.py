"""Python numbers as inputs of an operator's program, which has none as a constant."""

from __future__ import annotations

import struct
from typing import Any

import jax
import numpy as np
import torch

from torch_jax import target
from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.core import numbers
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Integers
from torch_jax.core.x64 import x64

_numbers: dict[tuple[type, Any], jax.Array | None] = {}  # None: met once


def number_input(value: Any) -> Any:
    """Return a number in JAX's fastest form: an array if it was met before, which traces alike."""
    kind = type(value)
    if kind is complex and target.platform() == "tpu":
        return np.complex64(value)  # its compiler knows no complex128, not even to convert it
    if isinstance(value, torch.SymFloat):
        return numbers.given(value)
    if ACTIVE.tracer is not None:  # a literal of the program; an array would become an input
        return value
    if kind is int and not -(1 << 63) <= value < 1 << 63:
        return np.uint64(value)  # JAX takes Python's integers for int64
    if ACTIVE.recorder is not None and kind is not complex:  # a recording takes all together
        return value
    known = kind, value if value and value == value and kind is not complex else _bits(value)
    if (array := _numbers.get(known)) is not None:
        return array
    if known not in _numbers and kind is not complex:
        if len(_numbers) >= ENTRIES_REMEMBERED:  # a schedule of ever new numbers must not grow this
            _numbers.clear()
        _numbers[known] = None
        return value
    with x64(), jax.ensure_compile_time_eval():  # other calls use it: never a tracer
        array = _numbers[known] = jax.device_put(value)  # weakly typed, and nothing is compiled
    return array


def _bits(value: complex) -> bytes:
    """Return bytes that differ for equal numbers such as 0.0 and -0.0, and find a NaN again."""
    return struct.pack("dd", value.real, value.imag)


def integers_input(value: Any) -> Any:
    """Return integers as inputs of an entry; within a recording unchanged, for its graph."""
    is_list = type(value) is list
    if ACTIVE.recorder is not None:
        return Integers(tuple(value) if is_list else (value,), is_list)
    return np.asarray(value, np.int64) if is_list else number_input(value)
