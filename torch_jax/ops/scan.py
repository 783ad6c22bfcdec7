"""Running sums, products, extremes and log-sum-exps along a dimension."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax import target
from torch_jax.ops.pointwise import logaddexp
from torch_jax.ops.promotion import category, convert, opmath
from torch_jax.ops.registry import op


def _scan(scan: Callable[..., Any], x: jax.Array, dim: int) -> Any:
    """Run ``scan`` along ``dim``, which a number and an empty tensor do not have."""
    return scan(x, axis=dim % x.ndim) if x.ndim and x.size else x


def _running(name: str, scan: Callable[..., Any]) -> None:
    @op(name)
    def lowering(self, dim, *, dtype=None):
        x = self if dtype is None else convert(self, dtype)
        narrow = category(x.dtype) < 2 and dtype is None
        return _scan(scan, x.astype(np.int64 if narrow else accumulated(x.dtype)), dim)

    lowering.__doc__ = f"``lax.{name}``; integers accumulate in int64, floats as PyTorch's do."


def accumulated(dtype: Any) -> np.dtype:
    """Return the dtype that PyTorch accumulates in: on the CPU float64 for float32."""
    wide = opmath(dtype)
    is_single = dtype in (np.float32, np.complex64) and target.on_cpu()
    return np.promote_types(wide, np.float64) if is_single else wide


_running("cumsum", lax.cumsum)
_running("cumprod", lax.cumprod)


def _in_blocks(combine: Callable[..., Any], start: Any, x: Any, dim: int, width: int = 0) -> Any:
    """Scan blocks of ``width`` side by side, from ``start`` of their first, and then their ends.

    Two loops of about the root of the length: ``lax.associative_scan`` writes all of its levels
    out, which takes XLA up to ten times as long to compile, and runs longer.
    """
    n = jax.tree.leaves(x)[0].shape[dim]
    width = width or math.isqrt(n - 1) + 1

    def split(x):
        x = jnp.pad(jnp.moveaxis(x, dim, 0), [(0, -n % width)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, width, *x.shape[1:]).swapaxes(0, 1)

    x = jax.tree.map(split, x)
    starts = jax.tree.map(lambda x: start(x[0]), x)
    ends, within = lax.scan(lambda a, b: (combine(a, b),) * 2, starts, x)
    if n > width:
        first = jax.tree.map(lambda x: x[0], starts)
        within = combine(lax.scan(lambda a, b: (combine(a, b), a), first, ends)[1], within)
    joined = jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:])[:n], within)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, dim), joined)


@op("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self, dim):
    """Add logarithms in blocks; complex ones in turn, since angles depend on the order."""
    x = self.astype(opmath(self.dtype))
    nothing = functools.partial(jnp.full_like, fill_value=-jnp.inf)
    width = max(x.shape, default=0) if category(x.dtype) == 3 else 0
    return _scan(
        lambda x, axis: _in_blocks(lambda a, b: logaddexp(b, a), nothing, x, axis, width), x, dim
    )


def _running_extreme(name: str, wins: Callable[..., jax.Array]) -> None:
    """Keep the running extreme and its position; the last of equals wins, and NaN over all."""

    def later(a, b):
        better = wins(b[0], a[0])
        if category(a[0].dtype) == 2:
            better = jnp.isnan(b[0]) | (better & ~jnp.isnan(a[0]))
        return tuple(jnp.where(better, y, x) for x, y in zip(a, b, strict=True))

    @op(name)
    def lowering(self, dim):
        if self.ndim == 0 and dim not in (0, -1):
            raise IndexError(f"{name}(): the dim of a scalar is -1 or 0, not {dim}")
        if self.ndim == 0 or self.size == 0:
            return self, jnp.zeros(self.shape, np.int64)
        dim %= self.ndim
        index = lax.broadcasted_iota(np.int64, self.shape, dim)
        return _in_blocks(later, lambda x: x, (self, index), dim)

    lowering.__doc__ = _running_extreme.__doc__


_running_extreme("cummax", jnp.greater_equal)
_running_extreme("cummin", jnp.less_equal)
