"""Views, and other operators that the table lacks, as functions of arrays with symbolic sizes.

Named by ATen overloads, with the arguments of their schemas. Sizes and bounds may be symbols of
``jax.export``: a decision must hold for all their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export as jax_export

from torch_jax.eager.variants import entering
from torch_jax.memory import dtypes
from torch_jax.ops.attention import attention

_FAR = 2**62  # the end of a slice without one


VIEWS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys("alias clone copy.default".split(), lambda self, **_options: self),
    "view": lambda self, size: self.reshape(tuple(size)),
    "permute": lambda self, dims: self.transpose(tuple(dims)),
    "unsqueeze": lambda self, dim: jnp.expand_dims(self, dim),
    "diagonal": lambda self, offset=0, dim1=0, dim2=1: jnp.diagonal(self, offset, dim1, dim2),
    "view_as_complex": lambda self: jax.lax.complex(self[..., 0], self[..., 1]),
    "view_as_real": lambda self: jnp.stack([self.real, self.imag], -1),
    "_conj": lambda self: self.conj(),
    "_neg_view": lambda self: -self,
    "sym_size.int": lambda self, dim: self.shape[dim],
    "sym_numel": lambda self: math.prod(self.shape),
}
_view = entering(VIEWS)


@_view("expand")
def expand(self, size, *, implicit=False):
    """Broadcast; a size of -1 stays."""
    old = (None,) * (len(size) - self.ndim) + self.shape
    sizes = [n if _is(wanted, -1) else wanted for wanted, n in zip(size, old, strict=True)]
    return jnp.broadcast_to(self, sizes)


@_view("squeeze.dims")
def squeeze(self, dim):
    """Drop dimensions of size 1; a size that may change does not count."""
    return self.squeeze(tuple({d % max(self.ndim, 1) for d in dim if _is(self.shape[d], 1)}))


@_view("slice.Tensor")
def slice_(self, dim=0, start=None, end=None, step=1):
    """Slice a dimension; bounds may be negative, and past the end."""
    start, end = _bounds(start, end, self.shape[dim])
    return jax.lax.slice_in_dim(self, start, end, step, dim)


def _bounds(start: Any, end: Any, size: Any) -> tuple[Any, Any]:
    start = _bound(0 if start is None else start, size)
    end = _bound(_FAR if end is None else end, size)
    return start, jax.core.max_dim(start, end)


def _bound(at: Any, size: Any) -> Any:
    """Return a bound of a slice, between 0 and the size."""
    if isinstance(at, int) and at >= _FAR:
        return size
    if at < 0:
        at = jax.core.max_dim(at + size, 0)
    return jax.core.min_dim(at, size)


@_view("select.int")
def select(self, dim, index):
    """Return one entry of a dimension."""
    index = index + self.shape[dim] if index < 0 else index
    return jax.lax.index_in_dim(self, index, dim, keepdims=False)


@_view("slice_scatter")
def slice_scatter(self, src, dim=0, start=None, end=None, step=1):
    """Replace a slice of the whole."""
    start, end = _bounds(start, end, self.shape[dim])
    if step == 1:
        parts = slice_(self, dim, 0, start), src.astype(self.dtype), slice_(self, dim, end)
        return jnp.concatenate(parts, dim)
    at = (slice(None),) * (dim % self.ndim) + (start + step * jnp.arange(src.shape[dim]),)
    return self.at[at].set(src.astype(self.dtype))


@_view("diagonal_scatter")
def diagonal_scatter(self, src, offset=0, dim1=0, dim2=1):
    """Replace a diagonal."""
    matrices, at = jnp.moveaxis(self, (dim1, dim2), (-2, -1)), jnp.arange(src.shape[-1])
    places = ..., at + max(-offset, 0), at + max(offset, 0)
    return jnp.moveaxis(matrices.at[places].set(src.astype(self.dtype)), (-2, -1), (dim1, dim2))


@_view("unfold")
def unfold(self, dimension, size, step):
    """Return windows of a dimension, as last dimension."""
    if self.ndim == 0:
        return jnp.broadcast_to(self, (size,))
    count = (self.shape[dimension] - size) // step + 1
    at = step * jnp.arange(count)[:, None] + jnp.arange(size)
    return jnp.moveaxis(jnp.moveaxis(self, dimension, -1)[..., at], -2, dimension % self.ndim)


@_view("view.dtype")
def view_dtype(self, dtype):
    """Return the same bits in another dtype of as many."""
    wanted = dtypes.to_jax(dtype)
    if wanted.itemsize != self.dtype.itemsize:
        raise NotImplementedError("a view in a dtype of another width")
    return jax.lax.bitcast_convert_type(self, wanted)


@_view("split_with_sizes")
def split_with_sizes(self, split_sizes: Sequence[Any], dim=0):
    """Return parts of these sizes."""
    parts, at = [], 0
    for size in split_sizes:
        parts.append(jax.lax.slice_in_dim(self, at, at + size, 1, dim))
        at = at + size
    return parts


@_view("_to_copy")
def to_copy(self, *, dtype=None, **_placement):
    """Convert to another dtype; PyTorch truncates floats to integers as NumPy does."""
    return self if dtype is None else self.astype(dtype)


@_view("empty.memory_format", "zeros")
def zeros(*args, dtype=None, **_placement):
    """Return zeros of a size, which comes last."""
    return jnp.zeros(tuple(args[-1]), dtype)


@_view("arange", "arange.start", "arange.start_step")
def arange(*bounds, dtype=None, **_placement):
    """Return a range: from, to, by."""
    start, end, step = bounds if len(bounds) == 3 else (*((0,) * (2 - len(bounds))), *bounds, 1)
    if not any(map(jax_export.is_symbolic_dim, (start, end, step))):
        return jnp.arange(start, end, step, dtype)
    for number in (start, end, step):
        if isinstance(number, float) and not number.is_integer():
            raise NotImplementedError(f"a range of sizes with {number}")
    start, end, step = (int(n) if isinstance(n, float) else n for n in (start, end, step))
    count = jax.core.max_dim(-((start - end) // step), 0)
    return (jnp.arange(count) * step + start).astype(dtype or jnp.int64)


@_view("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None,
    enable_gqa=False,
):  # fmt: skip
    """Return attention without dropout, whose decompositions would fix strides."""
    if dropout_p:
        raise NotImplementedError("dropout draws random numbers: call model.eval()")
    return attention(query, key, value, attn_mask, 0.0, is_causal, scale=scale)[0]


def _is(size: Any, number: int) -> bool:
    """Return whether a size is surely this number."""
    return isinstance(size, int) and size == number
