"""PyTorch's type promotion, for arrays.

https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc: the category
(bool < int < float < complex) of a dimensioned tensor wins over that of a zero-dim tensor, which
wins over that of a Python number; within a category the highest-ranking operand's dtype counts.
Python numbers arrive in a traced function as weakly typed scalars.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_FLOAT32 = np.dtype(np.float32)
_default: contextvars.ContextVar[np.dtype] = contextvars.ContextVar(
    "default_float", default=_FLOAT32
)

HALVES = (np.dtype(jnp.bfloat16), np.dtype(np.float16))
_BY_64_BITS = (np.dtype(np.uint8), np.dtype(np.uint32))
_COMPLEX_OF = {np.dtype(np.float64): np.dtype(np.complex128)}


def default_float() -> np.dtype:
    """Return the float dtype made from integers or numbers (``torch.get_default_dtype``)."""
    return _default.get()


def or_float(dtype: Any) -> np.dtype:
    """Return the dtype, or that of a float where it is None."""
    return default_float() if dtype is None else dtype


@contextlib.contextmanager
def default_float_is(dtype: np.dtype) -> Iterator[None]:
    """Set :func:`default_float` for the functions called (or traced) inside."""
    token = _default.set(dtype)
    try:
        yield
    finally:
        _default.reset(token)


def category(dtype: Any) -> int:
    """Return 0 for bool, 1 for integer, 2 for float, 3 for complex."""
    if dtype == jnp.bool_:
        return 0
    if jnp.issubdtype(dtype, jnp.integer):
        return 1
    return 3 if jnp.issubdtype(dtype, jnp.complexfloating) else 2


def join(a: np.dtype | None, b: np.dtype | None) -> np.dtype | None:
    """Return the smallest dtype that holds both, as ``torch.promote_types``; None is neutral."""
    if a is None or b is None:
        return b if a is None else a
    with jax.numpy_dtype_promotion("standard"):  # which agrees with PyTorch's, for all dtypes
        return np.dtype(jnp.promote_types(a, b))


def is_wrapped(x: Any) -> bool:
    """Return whether ``x`` is a Python number, or its weakly typed scalar under a trace."""
    return not hasattr(x, "dtype") or bool(getattr(x, "weak_type", False) and x.ndim == 0)


def _wrapped_dtype(x: Any) -> np.dtype:
    kind = category(x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype)
    if kind == 3:
        return np.dtype(_COMPLEX_OF.get(default_float(), np.complex64))
    return (np.dtype(np.bool_), np.dtype(np.int64), default_float())[kind]


def result_type(*operands: Any) -> np.dtype:
    """Return PyTorch's dtype of an elementwise op on ``operands`` (``torch.result_type``)."""
    dimensioned = zero_dim = wrapped = None
    for x in operands:
        if x is None:
            continue
        if is_wrapped(x):
            wrapped = join(wrapped, _wrapped_dtype(x))
        elif x.ndim == 0:
            zero_dim = join(zero_dim, x.dtype)
        else:
            dimensioned = join(dimensioned, x.dtype)
    result = _outrank(dimensioned, _outrank(zero_dim, wrapped))
    return default_float() if result is None else result


def _outrank(high: np.dtype | None, low: np.dtype | None) -> np.dtype | None:
    if high is None or low is None:
        return low if high is None else high
    return join(high, low) if category(low) > category(high) else high


def floating(dtype: np.dtype) -> np.dtype:
    """Return ``dtype``, or the default float for integers and bool."""
    return dtype if category(dtype) >= 2 else default_float()


def promote(*operands: Any, to_float: bool = False) -> list[Any]:
    """Return the operands as arrays of their common dtype; None stays None."""
    dtype = result_type(*operands)
    if to_float:
        dtype = floating(dtype)
    return [None if x is None else cast(jnp.asarray(x), dtype) for x in operands]


def cast(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return ``x`` cast to ``dtype``.

    XLA takes a product with a cast mask for a choice, which is 0 where the mask is false: also for
    infinities and NaN. A mask that chooses between 1 and 0 is not recognized.
    """
    if x.dtype == jnp.bool_ and category(dtype) > 1:
        return jnp.where(x, jnp.ones((), dtype), jnp.zeros((), dtype))
    return x.astype(dtype)


def opmath(dtype: Any) -> np.dtype:
    """Return the dtype PyTorch computes in: float32 for half types, else ``dtype`` itself."""
    return np.dtype(np.float32) if np.dtype(dtype) in HALVES else np.dtype(dtype)


def convert(x: jax.Array, dtype: Any) -> jax.Array:
    """Return ``x`` cast to ``dtype`` as ``Tensor.to`` casts on the CPU.

    Numbers outside of float8_e4m3fn, which has no infinity, saturate; XLA gives NaN. So it does for
    those that float8_e8m0fnu lacks, which has neither signs nor zero.
    """
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and category(dtype) < 3:
        x = x != 0 if dtype == jnp.bool_ else x.real
    if category(dtype) == 1 and category(x.dtype) == 2:
        return _integer(x, dtype)
    if dtype == jnp.float8_e4m3fn:
        x = jnp.clip(_wide(x), -448, 448)
    if dtype == jnp.float8_e8m0fnu:
        least = jax.lax.bitcast_convert_type(jnp.uint8(0), dtype)
        return jnp.where(x == 0, least, jnp.abs(_wide(x)).astype(dtype))
    return cast(x, dtype)


def _wide(x: jax.Array) -> jax.Array:
    """Return numbers as floats of 32 bits at least."""
    is_wide = category(x.dtype) >= 2 and x.dtype.itemsize >= 4
    return x if is_wide else x.astype(_FLOAT32)


def _integer(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return floats as integers, out of range and NaN as on x86, where XLA saturates.

    The processor converts to 32 or 64 bits with a sign and gives the lowest number for all numbers
    that do not fit; shorter integers keep the low bits. PyTorch's vectorized kernels differ among
    themselves for uint32: here the result is that of a single element. Of uint64 the upper half of
    the range is taken off before and put back after.
    """
    x = _wide(x)
    signed = np.dtype(np.int64 if dtype.itemsize == 8 or dtype in _BY_64_BITS else np.int32)
    half = 2.0 ** (8 * signed.itemsize - 1)
    upper = x >= half if dtype == np.uint64 else None
    if upper is not None:
        x = jnp.where(upper, x - half, x)
    fits = (x > -half - 1) & (x < half)  # the lowest number itself comes out either way
    whole = jnp.where(fits, x, -half).astype(signed)
    if upper is not None:
        whole = jnp.where(upper, whole ^ np.iinfo(np.int64).min, whole)
    return whole.astype(dtype)
