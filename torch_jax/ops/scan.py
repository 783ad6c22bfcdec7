"""Running sums, products, extremes and log-sum-exps along a dimension."""

from __future__ import annotations

import functools
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
        return _scan(scan, x.astype(np.int64 if narrow else _accumulated(x.dtype)), dim)

    lowering.__doc__ = f"``lax.{name}``; integers accumulate in int64, floats as PyTorch's do."


def _accumulated(dtype: Any) -> np.dtype:
    """Return the dtype that PyTorch accumulates in: on the CPU float64 for float32."""
    wide = opmath(dtype)
    is_single = dtype in (np.float32, np.complex64) and target.on_cpu()
    return np.promote_types(wide, np.float64) if is_single else wide


_running("cumsum", lax.cumsum)
_running("cumprod", lax.cumprod)


def _complex_cumlogsumexp(x, axis: int):
    """Add one after the other: the turns of an angle depend on the order."""

    def step(total, element):
        total = logaddexp(element, total)
        return total, total

    x = jnp.moveaxis(x, axis, 0)
    _, rest = lax.scan(step, x[0], x[1:])
    return jnp.moveaxis(jnp.concatenate([x[:1], rest]), 0, axis)


@op("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self, dim):
    """Add logarithms in pairs; ``lax.cumlogsumexp`` takes ten times as long on a CPU."""
    x = self.astype(opmath(self.dtype))
    of_reals = functools.partial(lax.associative_scan, logaddexp)
    return _scan(_complex_cumlogsumexp if category(x.dtype) == 3 else of_reals, x, dim)


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
        return lax.associative_scan(later, (self, index), axis=dim)

    lowering.__doc__ = _running_extreme.__doc__


_running_extreme("cummax", jnp.greater_equal)
_running_extreme("cummin", jnp.less_equal)
