"""Sums, products, extremes, moments and norms over dimensions.

Half types accumulate in float32, integers sum in int64. ``None`` and, for most, an empty list of
dimensions mean all of them; a number has no dimension but takes 0 and -1 for one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax import target
from torch_jax.budgets import ELEMENTS_OF_A_WIDE_SUM
from torch_jax.ops.derivatives import differentiated_as, magnitude, power_of_size, root
from torch_jax.ops.pointwise import quotient
from torch_jax.ops.promotion import category, convert, floating, opmath
from torch_jax.ops.registry import among, known, op

Dims = int | tuple[int, ...] | None


def axes(x: jax.Array, dim: Dims) -> tuple[int, ...]:
    """Return the dimensions to reduce, as JAX takes them."""
    if isinstance(dim, int):
        dim = (dim,)
    if not dim:
        return tuple(range(x.ndim))
    rank = max(x.ndim, 1)
    if not all(-rank <= d < rank for d in dim):
        raise IndexError(f"dimensions {dim} of {x.ndim}")
    return tuple(d % rank for d in dim) if x.ndim else ()


def count(x: jax.Array, dim: Dims) -> int:
    """Return the number of elements that are reduced to one."""
    return math.prod(x.shape[d] for d in axes(x, dim))


def _counted(x: jax.Array, dim: Dims) -> Any:
    """Return :func:`count` in the dtype of ``x``; under ``jax.export`` it may be a symbol."""
    n: Any = count(x, dim)
    return x.dtype.type(n) if isinstance(n, int) else jnp.asarray(n).astype(x.dtype)


def _accumulable(x: jax.Array, dtype: Any) -> jax.Array:
    """Return ``x`` in the dtype that sums and products are taken in."""
    if dtype is not None:
        x = convert(x, dtype)
    return x.astype(np.int64 if category(x.dtype) < 2 and dtype is None else opmath(x.dtype))


def _sum(x: jax.Array, dims: tuple[int, ...], keepdims: bool) -> jax.Array:
    """Sum over dims; a wide sum over leading ones, as of gradients of biases, is a product."""
    leads = dims == tuple(range(len(dims))) and x.dtype in (np.float32, np.float64)
    if not (leads and target.on_cpu() and _is_wide(x.shape[len(dims) :])):
        return jnp.sum(x, dims, keepdims=keepdims)
    ones = jnp.ones(x.shape[: len(dims)], x.dtype)
    total = jnp.tensordot(ones, x, len(dims), precision=lax.Precision.HIGHEST)
    return jnp.expand_dims(total, dims) if keepdims else total


def _is_wide(shape: tuple[Any, ...]) -> bool:
    known = all(isinstance(n, int) for n in shape)  # under ``jax.export`` one may be a symbol
    return known and math.prod(shape) > ELEMENTS_OF_A_WIDE_SUM


@op("sum", "sum.dim_IntList")
def sum_dim(self, dim=None, keepdim=False, *, dtype=None):
    """Sum; integers and bools in int64."""
    if dtype == jnp.bool_:
        return jnp.any(self, axes(self, dim), keepdims=keepdim)
    x = _accumulable(self, dtype)
    return _sum(x, axes(x, dim), keepdim)


@op("nansum", meta=lambda dim=None: dim != ())
def nansum(self, dim=None, keepdim=False, *, dtype=None):
    """Sum with NaN as zero. The meta function reads an empty list of dims otherwise."""
    result = dtype or (np.int64 if category(self.dtype) < 2 else self.dtype)
    if category(self.dtype) == 2:
        self = jnp.where(jnp.isnan(self), 0, self)
    return sum_dim(self, dim, keepdim, dtype=dtype).astype(result)


@op("prod", "prod.dim_int")
def prod(self, dim=None, keepdim=False, *, dtype=None):
    """Multiply; integers and bools in int64."""
    x = _accumulable(self, dtype)
    return jnp.prod(x, axes(x, dim), keepdims=keepdim)


@op("mean", "mean.dim")
def mean(self, dim=None, keepdim=False, *, dtype=None):
    """Return the mean; NaN of nothing."""
    x = _accumulable(self, dtype)
    return quotient(_sum(x, axes(x, dim), keepdim), _counted(x, dim))


def _moments(x, dim, correction, keepdim):
    """Return variance and mean; no degrees of freedom, or fewer, divide by 0."""
    x = x.astype(opmath(x.dtype))
    n = count(x, dim)
    mean = quotient(jnp.sum(x, axes(x, dim), keepdims=True), _counted(x, dim))
    off = x - mean
    square = (off * jnp.conj(off)).real
    left = n - jnp.asarray(1 if correction is None else correction).astype(square.dtype)
    freedom = jnp.where(left > 0, left, 0)  # NaN as well
    total = jnp.sum(square, axes(x, dim), keepdims=keepdim)
    variance = quotient(total, freedom)
    return variance, mean if keepdim else jnp.squeeze(mean, axes(x, dim))


def _enter_moments(name: str, of: Callable[[jax.Array, jax.Array], Any]) -> None:
    @op(f"{name}.correction")
    def lowering(self, dim=None, *, correction=None, keepdim=False):
        return of(*_moments(self, dim, correction, keepdim))

    lowering.__doc__ = f"``{name}``; ``correction`` is 1 unless given."


_enter_moments("var", lambda var, mean: var)
_enter_moments("std", lambda var, mean: root(var))
_enter_moments("var_mean", lambda var, mean: (var, mean))
_enter_moments("std_mean", lambda var, mean: (root(var), mean))


def _require_some(x: jax.Array, dim: Dims) -> None:
    if 0 in (x.shape[d] for d in axes(x, dim)):
        raise IndexError(f"a reduction of dimensions {dim} of {x.shape}")


def _with_nans(reduce: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return ``jnp.max`` or ``jnp.min`` as a function in which NaN wins.

    YNNPACK, by which XLA reduces on the CPU, leaves NaN out (jaxlib 0.10.2).
    """

    def extreme(x: jax.Array, over: Any = None, keepdims: bool = False, **initial: Any) -> Any:
        found = reduce(x, over, keepdims=keepdims, **initial)
        if category(x.dtype) != 2 or not target.on_cpu():
            return found
        return jnp.where(jnp.isnan(x).any(over, keepdims=keepdims), jnp.nan, found)

    return extreme


largest, smallest = _with_nans(jnp.max), _with_nans(jnp.min)


def _extreme(name: str, reduce: Callable[..., jax.Array], arg: Callable[..., jax.Array]) -> None:
    """Enter ``amax``, ``max``, ``max.dim`` and ``argmax``, or those of ``min``; NaN wins."""

    def positions(x, dim, keepdim):
        index = arg(x.reshape(1) if x.ndim == 0 else x, dim, keepdims=keepdim)
        return index.reshape(()) if x.ndim == 0 else index

    @op(f"a{name}")
    def over_dims(self, dim=(), keepdim=False):
        _require_some(self, dim)
        return reduce(self, axes(self, dim), keepdims=keepdim)

    @op(name)
    def over_all(self):
        return reduce(self)

    def picked(self, dim, keepdim=False):
        x, index = jnp.atleast_1d(self), positions(self, dim, keepdim)
        at = arg(x, dim, keepdims=True)
        return jnp.take_along_axis(x, at, dim).reshape(index.shape), index

    @op(f"{name}.dim")
    @differentiated_as(picked)
    def with_index(self, dim, keepdim=False):
        _require_some(self, dim)
        return reduce(self, axes(self, dim), keepdims=keepdim), positions(self, dim, keepdim)

    @op(f"arg{name}")
    def arg_over(self, dim=None, keepdim=False):
        if dim is None:
            index = arg(self.reshape(-1), 0)
            return index.reshape((1,) * self.ndim) if keepdim else index
        return positions(self, dim, keepdim)

    over_dims.__doc__ = over_all.__doc__ = f"``jnp.{name}``; NaN wins."
    with_index.__doc__ = arg_over.__doc__ = "The index is that of the first of equals."


_extreme("max", largest, jnp.argmax)
_extreme("min", smallest, jnp.argmin)


@op("aminmax", "_aminmax", "_aminmax.dim")
def aminmax(self, dim=None, keepdim=False):
    """Return smallest and largest, over one dimension or all."""
    over = axes(self, dim)
    _require_some(self, dim)
    return smallest(self, over, keepdims=keepdim), largest(self, over, keepdims=keepdim)


def _logic(name: str, reduce: Callable[..., jax.Array]) -> None:
    @op(name, f"{name}.dim", f"{name}.dims")
    def over_dims(self, dim=None, keepdim=False):
        return self != 0 if dim == () else reduce(self != 0, axes(self, dim), keepdims=keepdim)

    over_dims.__doc__ = f"``jnp.{name}``, which sees only real parts; no dims reduce nothing."


_logic("any", jnp.any)
_logic("all", jnp.all)


@op("logsumexp")
def logsumexp(self, dim, keepdim=False):
    """Return log-sum-exp: minus infinity of nothing; integers become floats."""
    x = self.astype(opmath(floating(self.dtype)))
    over = axes(x, dim)
    if count(x, dim) == 0:
        return jnp.log(jnp.sum(x, over, keepdims=keepdim))
    return jax.nn.logsumexp(x, over, keepdims=keepdim)


# Orders of norms with formulas of their own.
ORDERS = among(0, 1, 2, math.inf, -math.inf)


def vector_norm(x: jax.Array, ord: float, dim: Dims = None, keepdim: bool = False) -> jax.Array:
    """Return ``(sum |x|^ord)^(1/ord)`` with its limits at 0 and at the infinities."""
    x = x.astype(opmath(x.dtype))
    over, constant = axes(x, dim), known(ord)
    if constant == 2:
        square = jnp.square(x) if category(x.dtype) == 2 else x.real**2 + x.imag**2
        return root(jnp.sum(square, over, keepdims=keepdim))
    size = magnitude(x) if category(x.dtype) == 2 else jnp.abs(x)
    if constant == math.inf:
        # of nothing 0, which only shapes with nothing else to reduce arrive at
        return largest(size, over, keepdims=keepdim, initial=0)
    if constant == -math.inf:
        return smallest(size, over, keepdims=keepdim, initial=math.inf)
    if constant == 0:
        return jnp.sum((size != 0).astype(size.dtype), over, keepdims=keepdim)
    if constant == 1:
        return jnp.sum(size, over, keepdims=keepdim)
    total = jnp.sum(power_of_size(size, ord), over, keepdims=keepdim)
    return power_of_size(total, 1 / ord)


@op("linalg_vector_norm", static={"ord": ORDERS})
def linalg_vector_norm(self, ord=2, dim=None, keepdim=False, *, dtype=None):
    """Return the norm, after a cast to ``dtype``."""
    return vector_norm(self if dtype is None else self.astype(dtype), ord, dim, keepdim)


@op("linalg__powsum", static={"ord": ORDERS})
def linalg_powsum(self, ord=2, dim=None, keepdim=False, *, dtype=None):
    """Return ``sum |x|^ord``."""
    x = self if dtype is None else self.astype(dtype)
    size = jnp.abs(x.astype(opmath(x.dtype)))
    return jnp.sum(power_of_size(size, ord), axes(x, dim), keepdims=keepdim)


@op(
    *("norm.Scalar", "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype"),
    *("native_norm", "native_norm.ScalarOpt_dim_dtype"),
    static={"p": ORDERS},
)
def norm(self, p=2, dim=None, keepdim=False, dtype=None):
    """Return the norm of all elements or over dimensions; without ``p``, 2."""
    return linalg_vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


@op("_foreach_norm.Scalar", static={"ord": ORDERS}, meta=False)
def foreach_norm(self, ord=2, dtype=None):
    """Return the norm of each tensor, in its own dtype unless one is given."""
    given = [x if dtype is None else x.astype(dtype) for x in self]
    return [vector_norm(x, ord).astype(x.real.dtype) for x in given]


@op("_foreach_powsum.Scalar", static={"ord": ORDERS}, meta=False)
def foreach_powsum(self, ord=2, dtype=None):
    """Return ``sum |x|^ord`` of each tensor."""
    return [linalg_powsum(x, ord, dtype=dtype).astype(dtype or x.dtype) for x in self]


@op("hash_tensor")
def hash_tensor(self, dim=(), *, keepdim=False, mode=0):
    """Return the exclusive or of the bits of all elements, as float64 or int64, in uint64."""
    wide = self.astype(np.float64 if category(self.dtype) == 2 else np.int64)
    bits = lax.bitcast_convert_type(wide, np.uint64)
    dims = axes(self, dim)
    result = lax.reduce(bits, np.uint64(0), lax.bitwise_xor, dims)
    return jnp.expand_dims(result, dims) if keepdim else result
