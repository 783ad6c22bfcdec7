"""Reading and writing by position: advanced indexing, whole slices, ``take`` and masks.

An index out of range is an error, raised through ``check``. Where checks are off (setting
``check_indices``) a read there gives NaN, or the least integer, and a write is dropped.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops import buckets
from torch_jax.ops.derivatives import transposed
from torch_jax.ops.on_host import on_host
from torch_jax.ops.promotion import convert
from torch_jax.ops.registry import column_major, op

# ---- masks as positions


def is_mask(index) -> bool:
    """Return whether an index, or its form before the call, is a mask: bool, or uint8."""
    return index is not None and index.dtype in (np.bool_, np.uint8)


def _expand_masks(self, indices) -> tuple:
    """Return the index tuple for ``x.at``: slices for None, and positions for masks."""
    result: list = []
    for index in indices:
        if not is_mask(index):
            result.append(slice(None) if index is None else index)
            continue
        _match_mask(self, index, len(result))
        result += np.nonzero(on_host(index))
    for dim, index in enumerate(result):
        if not isinstance(index, slice) and index.size != 0 and self.shape[dim] == 0:
            raise IndexError(f"index is out of bounds for dimension with size 0: dimension {dim}")
    return tuple(result)


def _padded(self, indices) -> buckets.Masked | None:
    """Return indices with masks padded, where possible."""
    if not _has_mask(indices):
        return None
    axis = 0
    for index in indices:
        if is_mask(index):
            _match_mask(self, index, axis)
        axis += index.ndim if is_mask(index) else 1
    return buckets.masked(self, list(indices), tuple(map(is_mask, indices)))


def _match_mask(self, mask, axis: int) -> None:
    if mask.shape != self.shape[axis : axis + mask.ndim]:
        raise IndexError(f"a mask of {mask.shape} at dimension {axis} of {self.shape}")


def _has_mask(indices) -> bool:
    return any(is_mask(i) for i in indices)


def _knows_masks(indices) -> bool:
    """Return False for masks of uint8: PyTorch's meta functions refuse them, the CPU does not."""
    return not any(i is not None and i.dtype == np.uint8 for i in indices)


# ---- bounds


def bounds(index, size: int, dim: int, wrap: bool = False):
    """Return ``(ok, message)`` of a check of bounds; ``wrap``: negative ones count from the end."""
    ok = ((index >= (-size if wrap else 0)) & (index < size)).all()
    return ok, f"index is out of bounds for dimension {dim} with size {size}"


def check_dim(self, dim, index, wrap: bool = False):
    """Return :func:`bounds` along a dimension."""
    return bounds(index, self.shape[dim] if self.ndim else 1, dim, wrap)


def dim_bounds(self, dim, index):
    """Return the same as a RuntimeError."""
    return *check_dim(self, dim, index), RuntimeError


def check_indices(self, indices):
    """Check every index tensor of advanced indexing."""
    ok, messages, axis = True, [], 0
    for index in indices:
        if index is not None and not is_mask(index) and self.size:  # of nothing, none is read
            inside, message = bounds(index, self.shape[axis], axis, wrap=True)
            ok &= inside
            messages.append(message)
        axis += index.ndim if is_mask(index) else 1
    return ok, "; or ".join(dict.fromkeys(messages))


def _check_flat(self, index):
    ok, _ = bounds(index, self.size, 0, wrap=True)
    return ok, f"out of range: tried to access an index of a tensor of {self.size} elements"


def strict(index, size: int):
    """Return ``index`` with negative numbers out of range, so that JAX does not wrap them."""
    return jnp.where(index < 0, size, index)


_LOGICAL = {"add": "max", "multiply": "min"}  # sums of bool are or, products and


def write(x, at: tuple, values, method: str = "set"):
    """Do ``x.at[at].<method>(values)``; positions out of range are left out."""
    if x.dtype == jnp.bool_:
        method = _LOGICAL.get(method, method)
    if method == "set" and _is_one_row(x, at):
        return _write_row(x, len(at) - 1, at[-1], values)
    return getattr(x.at[at], method)(values, mode="drop")


def _is_one_row(x, at: tuple) -> bool:
    """Return whether an index names one position of one dim, as that of a decoded token."""
    *before, index = at
    is_one = getattr(index, "size", 0) == 1 and x.shape[len(before)] > 0
    return is_one and all(isinstance(one, slice) and one == slice(None) for one in before)


def _write_row(x, dim: int, index, values):
    """Write one row along a dim by updating a slice: XLA fuses that, and does not fuse a scatter.

    The update clamps its start, so for a position out of range the old row is written.
    """
    size, at = x.shape[dim], index.reshape(())
    at = jnp.where(at < 0, at + size, at)
    start = jnp.clip(at, 0, size - 1)
    start = start.astype(jnp.int32) if size < 2**31 else start
    old = lax.dynamic_slice_in_dim(x, start, 1, dim)
    row = jnp.broadcast_to(values, x.shape[:dim] + index.shape + x.shape[dim + 1 :])
    row = jnp.where(at == start, row.reshape(old.shape).astype(x.dtype), old)
    return lax.dynamic_update_slice_in_dim(x, row, start, dim)


# ---- advanced indexing

_NO_MASK = "use torch.where(mask, x, other) or multiply by the mask"


@op(
    "index.Tensor",
    "_unsafe_index.Tensor",
    host=("indices",),
    concrete=_has_mask,
    instead=_NO_MASK,
    meta=_knows_masks,
    check=check_indices,
)
def index(self, indices):
    """Index by the rules of NumPy and PyTorch: adjacent indices stay in place, others go first."""
    if (padded := _padded(self, indices)) is not None:
        return buckets.take(self, padded)
    return self.at[_expand_masks(self, indices)].get(mode="fill")


def _masked_values(self, indices, values):
    """Return where ``self[..., mask, ...] = values`` writes, and the values, without a count.

    The k-th place where the mask holds takes the k-th of the values.
    """
    lead = len(indices) - 1
    mask = indices[lead]
    _match_mask(self, mask, lead)
    rest = self.ndim - lead - mask.ndim
    values = values.reshape((1,) * (lead + 1 + rest - values.ndim) + values.shape)
    if values.shape[lead] == 1:
        values = jnp.expand_dims(values, range(lead + 1, lead + mask.ndim))
    else:
        kth = jnp.cumsum(mask.reshape(-1).astype(jnp.int32)).reshape(mask.shape) - 1
        values = values.at[(slice(None),) * lead + (jnp.maximum(kth, 0),)].get(mode="fill")
    mask = (mask != 0).reshape(mask.shape + (1,) * rest)
    return mask, jnp.broadcast_to(values, self.shape)


def _one_mask(indices) -> bool:
    """Return whether the indices are Nones and then one mask, which needs no positions."""
    *before, last = indices
    return is_mask(last) and last.ndim > 0 and all(i is None for i in before)


def _check_put(self, indices, values):
    if not _one_mask(indices):
        return check_indices(self, indices)
    lead = len(indices) - 1
    mask = indices[lead]
    axis = values.ndim - (self.ndim - lead - mask.ndim) - 1  # of the values, along the mask
    if mask.shape != self.shape[lead : lead + mask.ndim] or axis < 0 or values.shape[axis] == 1:
        return True, ""
    message = (
        f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
        "indexing result, whose size is the count of the mask"
    )
    return jnp.count_nonzero(mask) == values.shape[axis], message, RuntimeError


@op(
    "index_put",
    "_index_put_impl",
    "_unsafe_index_put",
    host=("indices",),
    concrete=lambda indices: _has_mask(indices) and not _one_mask(indices),
    instead="use torch.where(mask, values, x)",
    meta=_knows_masks,
    check=_check_put,
)
def index_put(self, indices, values, accumulate=False, unsafe=False):
    """Do ``self[indices] = values`` or ``+=``; one mask is a select, without positions."""
    masked = _one_mask(indices)
    padded = None if masked else _padded(self, indices)
    padded = padded if padded is not None and padded.takes(values.shape) else None
    positions = () if masked or padded else _expand_masks(self, indices)
    fills = masked and values.size == 1 and not accumulate
    if values.dtype != self.dtype and not fills:
        raise RuntimeError(f"values of {values.dtype} for a destination of {self.dtype}")
    values = convert(values, self.dtype)
    if values.size == 0:
        return self
    if masked:
        mask, values = _masked_values(self, indices, values)
        return jnp.where(mask, jnp.add(self, values) if accumulate else values, self)
    if padded is not None:
        return _write_padded(
            self, padded.indices, padded.masks, padded.length, values, bool(accumulate)
        )
    return write(self, positions, values, "add" if accumulate else "set")


@functools.partial(jax.jit, static_argnums=(2, 3, 5))
def _write_padded(x, indices, masks, length, values, accumulate):
    return write(x, buckets.at(x, indices, masks, length), values, "add" if accumulate else "set")


# ---- one dimension


def along(self, dim: int, index) -> tuple[jax.Array, tuple]:
    """Return ``self`` with a dimension at least, and the index tuple along ``dim``."""
    x = self.reshape(-1) if self.ndim == 0 else self
    dim %= x.ndim
    index = strict(index.reshape(-1), x.shape[dim])
    return x, (slice(None),) * dim + (index,)


@op("index_select", host=("index",), check=check_dim)
def index_select(self, dim, index):
    """Do ``jnp.take`` along a dimension, where negative numbers are out of range."""
    x, at = along(self, dim, index)
    result = x.at[at].get(mode="fill")
    return result.reshape(()) if self.ndim == 0 else result


@op("index_add", host=("index",), check=dim_bounds)
def index_add(self, dim, index, source, *, alpha=1):
    """Do ``x.at[…].add``; for bool, or."""
    if source.ndim == self.ndim > 0:
        refuse_other_slices(self.shape, source.shape, dim)
    x, at = along(self, dim, index)
    source = source.reshape(x.at[at].get(mode="fill").shape)
    source = source * jnp.asarray(alpha).astype(source.dtype)
    return write(x, at, source.astype(x.dtype), "add").reshape(self.shape)


def refuse_other_slices(shape, given, dim):
    """Raise where slices along a dimension have other sizes: as many elements do not suffice."""
    dim %= len(shape)
    if shape[:dim] + shape[dim + 1 :] != given[:dim] + given[dim + 1 :]:
        raise RuntimeError(f"slices of {given} for those of {shape}")


@op("index_copy", host=("index",), check=check_dim)
def index_copy(self, dim, index, source):
    """Write by index; of equal indices the last one wins where JAX is on the CPU, else any."""
    x, at = along(self, dim, index)
    source = source.reshape(source.shape or (1,))
    return write(x, at, source.astype(x.dtype)).reshape(self.shape)


@op(
    *("index_fill.int_Scalar", "index_fill.int_Tensor"),
    host=("index",),
    check=lambda self, dim, index: check_dim(self, dim, index, wrap=True),
)
def index_fill(self, dim, index, value):
    """Fill by index; here negative indices count from the end."""
    x = self.reshape(-1) if self.ndim == 0 else self
    at = (slice(None),) * (dim % x.ndim) + (index.reshape(-1),)
    value = jnp.asarray(value).astype(x.dtype)
    return write(x, at, value).reshape(self.shape)


# ---- the flattened tensor


@op("take", host=("index",), check=_check_flat)
def take(self, index):
    """Return elements by position in the flattened tensor."""
    return self.reshape(-1).at[index].get(mode="fill")


@op("put", host=("index",), check=_check_flat)
def put(self, index, source, accumulate=False):
    """Write elements by position in the flattened tensor."""
    at = (index.reshape(-1),)
    result = write(self.reshape(-1), at, source.reshape(-1), "add" if accumulate else "set")
    return result.reshape(self.shape)


# ---- masks


@op("masked_select", concrete=True, meta=False, instead=_NO_MASK)
def masked_select(self, mask):
    """Return the elements where the mask holds, as a vector; both are broadcast."""
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    return buckets.compress(*(jnp.broadcast_to(x, shape).reshape(-1) for x in (self, mask)))


def _check_source(mask, source, self):
    mask = jnp.broadcast_to(mask, jnp.broadcast_shapes(self.shape, mask.shape))
    ok = jnp.count_nonzero(mask) <= source.size
    return ok, "Number of elements of source < number of ones in mask", RuntimeError


@op("masked_scatter", check=_check_source)
def masked_scatter(self, mask, source):
    """Give the k-th place where the mask holds the k-th element of the source."""
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    mask, self = jnp.broadcast_to(mask, shape), jnp.broadcast_to(self, shape)
    if source.size == 0:
        return self
    kth = jnp.cumsum(mask.reshape(-1).astype(jnp.int64)).reshape(shape) - 1
    return jnp.where(mask, source.reshape(-1).at[jnp.maximum(kth, 0)].get(mode="fill"), self)


@op("masked_scatter_backward")
def masked_scatter_backward(grad_output, mask, sizes):
    """Return the gradient where the mask holds, in order, and zeros after it."""
    zeros = jnp.zeros_like(grad_output)
    return transposed(lambda source: masked_scatter(zeros, mask, source), grad_output, sizes)


@op(
    "nonzero",
    concrete=True,
    meta=False,
    instead="use torch.nonzero_static(x, size=n), with n known",
)
def nonzero(self):
    """Return ``np.argwhere``, a column for each dimension laid out in one piece."""
    if self.size and self.ndim:
        return buckets.positions(self, buckets.count_of(self))
    return column_major(np.argwhere(on_host(self)))


@op("nonzero_static", meta=False)  # whose strides are not those of the CPU
def nonzero_static(self, *, size, fill_value=-1):
    """Return the first ``size`` positions, padded: the shape depends on no values."""
    if self.ndim == 0 or self.size == 0:
        return jnp.full((size, self.ndim), fill_value, jnp.int64)
    return jnp.stack(jnp.nonzero(self, size=size, fill_value=fill_value), 1)
