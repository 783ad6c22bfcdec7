"""New tensors from numbers: constants, ranges, identity, triangular positions."""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops.promotion import (
    cast,
    category,
    convert,
    default_float,
    opmath,
    or_float,
    result_type,
)
from torch_jax.ops.registry import op

_IS_OLD = tuple(map(int, version("torch").split(".")[:2])) < (2, 14)


@op("full")
def full(size, fill_value, *, dtype=None):
    """Fill a tensor; the default dtype is the number's: bool, int64, default float or complex."""
    return _filled(size, fill_value, result_type(fill_value) if dtype is None else dtype)


def _filled(shape, value, dtype):
    """Cast as tensors are cast: 1j is true."""
    return jnp.full(shape, convert(jnp.asarray(value), dtype))


@op("full_like")
def full_like(self, fill_value, *, dtype=None):
    """Fill a tensor; strides and memory format are the executor's."""
    return _filled(self.shape, fill_value, self.dtype if dtype is None else dtype)


def _constant(name: str, value: int) -> None:
    """Enter ``zeros`` and ``zeros_like``, or those of another number."""

    @op(name)
    def of_size(size, *, dtype=None):
        return jnp.full(size, value, or_float(dtype))

    @op(f"{name}_like")
    def like(self, *, dtype=None):
        return jnp.full(self.shape, value, self.dtype if dtype is None else dtype)


_constant("zeros", 0)
_constant("ones", 1)
op("zero", uniform=True)(lambda self: jnp.zeros_like(self))  # for ``Tensor.zero_`` too
op("scalar_tensor")(lambda s, *, dtype=None: jnp.asarray(s, or_float(dtype)))


@op("fill.Scalar", "fill.Tensor", uniform=True)
def fill(self, value):
    """Return a filled tensor, for ``Tensor.fill_`` too."""
    return _filled(self.shape, value, self.dtype)


@op("eye", "eye.m")
def eye(n, m=None, *, dtype=None):
    """Do ``jnp.eye``, whose products are no choices for XLA."""
    return cast(jnp.eye(n, m, dtype=bool), or_float(dtype))


_EXACT = 1 << 24  # below it every whole number is a float32


def _sequence(start, step, count: int, dtype: np.dtype):
    """Return ``start + step * i``, cast once from int64 or float64, as PyTorch does on CPU.

    Small whole numbers are computed in int32 with the same result: chips emulate the others.
    """
    wide: Any = np.int64 if category(dtype) < 2 else np.float64
    ends = start, start + step * count
    if all(abs(x) < _EXACT and x == int(x) for x in (*ends, step)):
        wide = np.int32
    return (wide(start) + lax.iota(wide, count) * wide(step)).astype(dtype)


def _step_stays(step=1, dtype=None) -> bool:
    """Return whether the meta function takes the step: it refuses one that becomes 0."""
    return dtype is None or _truncates(dtype) or category(dtype) == 2 or not 0 < abs(step) < 1


def _truncates(dtype: Any) -> bool:
    """Return whether bounds are made integers before counting."""
    return _IS_OLD and dtype == np.int64


@op("arange.start", "arange.start_step", static=("start", "end", "step"), meta=_step_stays)
def arange_step(start, end, step=1, *, dtype=None):
    """Leave the end out; until torch 2.13 int64 bounds are truncated before counting."""
    if dtype is None:
        integers = all(isinstance(b, int) for b in (start, end, step))
        dtype = np.dtype(np.int64) if integers else default_float()
    if _truncates(dtype):
        start, end, step = int(start), int(end), int(step)
    return _sequence(start, step, math.ceil((end - start) / step), dtype)


@op("torch_jax::shift", meta=False, integers=("by",))
def shift(self, by):
    """Add an integer: counting from another place is the same program."""
    return self + by


op("arange", static=("end",))(lambda end, *, dtype=None: arange_step(0, end, 1, dtype=dtype))


@op("range", "range.step", static=("start", "end", "step"))
def range_step(start, end, step=1, *, dtype=None):
    """Include the end (``torch.range``); without a dtype it is the default float."""
    return _sequence(start, step, math.floor((end - start) / step) + 1, or_float(dtype))


def _ramp(start, end, steps: int, dtype: np.dtype):
    """Return ``steps`` numbers from ``start`` to ``end``, the second half counted from the end."""
    if category(dtype) < 2:  # truncated by the caller's cast; only the step is a fraction
        start, end = (jnp.asarray(x).astype(dtype).astype(np.float64) for x in (start, end))
    else:
        start, end = (jnp.asarray(x).astype(dtype).astype(opmath(dtype)) for x in (start, end))
    # XLA would multiply by the rounded inverse of a constant
    intervals = lax.optimization_barrier(jnp.asarray(max(steps - 1, 1), start.dtype))
    step = (end - start) / intervals
    i = lax.iota(np.int64, steps).astype(step.dtype)
    rising, falling = start + step * i, end - step * (steps - 1 - i)
    return jnp.where(lax.iota(np.int64, steps) < max(steps // 2, steps == 1), rising, falling)


@op(*(f"linspace{o}" for o in ("", ".Tensor_Tensor", ".Tensor_Scalar", ".Scalar_Tensor")))
def linspace(start, end, steps, *, dtype=None):
    """Return a ramp; for integer dtypes bounds are truncated first, and the values again."""
    if dtype is None:
        joined = result_type(start, end)
        dtype = joined if category(joined) == 3 else default_float()
    return _ramp(start, end, steps, dtype).astype(dtype)


@op("tril_indices")
def tril_indices(row, col, offset=0, *, dtype=np.int64):
    """Positions on and below a diagonal, as a constant of shape ``(2, count)``."""
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)).astype(dtype or np.int64))


@op("triu_indices")
def triu_indices(row, col, offset=0, *, dtype=np.int64):
    """Positions on and above a diagonal, as a constant of shape ``(2, count)``."""
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)).astype(dtype or np.int64))


@op("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")
def kaiser_window(window_length, periodic=True, beta=12.0, *, dtype=None):
    """Return a window; a periodic one is a longer symmetric one without its last element."""
    dtype = or_float(dtype)
    if window_length <= 1:
        return jnp.ones(window_length, dtype)
    beta = jnp.asarray(beta).astype(opmath(dtype))
    return jnp.kaiser(window_length + periodic, beta)[:window_length].astype(dtype)
