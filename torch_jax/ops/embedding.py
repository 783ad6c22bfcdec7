"""Rows of a table by index, one by one or in bags."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torch_jax.ops.derivatives import differentiated_as, transposed
from torch_jax.ops.promotion import opmath
from torch_jax.ops.reduction import vector_norm
from torch_jax.ops.registry import op

_SUM, _MEAN, _MAX = range(3)


def _in_range(weight, indices):
    ok = ((indices >= 0) & (indices < weight.shape[0])).all()
    return ok, "index out of range in self"


def _rows(table: jax.Array, indices: jax.Array) -> jax.Array:
    """Return rows of the table; an index out of range, were it negative, reads NaN."""
    return table.at[indices].get(mode="fill", wrap_negative_indices=False)


def _counts(indices: jax.Array, count: int) -> jax.Array:
    return jnp.zeros(count, jnp.int32).at[indices].add(1, mode="drop", wrap_negative_indices=False)


def _counted_rows(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    rows = _rows(weight, indices)
    if scale_grad_by_freq:
        rows = rows / _counts(indices, weight.shape[0])[indices][..., None]
    return rows if padding_idx < 0 else jnp.where((indices == padding_idx)[..., None], 0, rows)


@op("embedding", check=_in_range)
@differentiated_as(_counted_rows)
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """Return rows of ``weight``; the other arguments concern the gradient."""
    return _rows(weight, indices)


@op("embedding_dense_backward")
def embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq):
    """Return rows of ``grad_output`` added up by index, except those of ``padding_idx``."""

    def rows(table):
        return _counted_rows(table, indices, padding_idx, scale_grad_by_freq)

    return transposed(rows, grad_output, (num_weights, grad_output.shape[-1]))


@op("embedding_renorm", static=("norm_type",), check=lambda self, indices: _in_range(self, indices))
def embedding_renorm(self, indices, max_norm, norm_type):
    """Scale the rows that ``indices`` names down to a norm of at most ``max_norm``."""
    indices = indices.reshape(-1)
    rows = _rows(self, indices).astype(opmath(self.dtype))
    norm = vector_norm(rows, norm_type, 1, keepdim=True)
    rows = jnp.where(norm > max_norm, rows * (max_norm / (norm + 1e-7)), rows)
    return self.at[indices].set(rows.astype(self.dtype), mode="drop")


@op("_embedding_bag", "_embedding_bag_forward_only", check=_in_range)
def _embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    """Return sums, means or maxima over bags; also bag of each index, bag sizes and argmax."""
    begins = offsets[:-1] if include_last_offset else offsets
    count = begins.shape[0]
    begun = jnp.zeros(indices.shape[0], indices.dtype).at[begins].add(1, mode="drop")
    bag = jnp.cumsum(begun) - 1
    rows = embedding(weight, indices, -1, scale_grad_by_freq).astype(opmath(weight.dtype))
    # an index that pads belongs to no bag
    target = bag if padding_idx < 0 else jnp.where(indices == padding_idx, count, bag)
    sizes = _counts(target, count)
    largest = jnp.full((count, rows.shape[1]) if mode == _MAX else 0, -1, indices.dtype)
    if mode == _MAX and rows.shape[0] != 0:
        out, largest = _bag_max(rows, indices, target, count)
        out = jnp.where(sizes[:, None] > 0, out, 0)
    else:
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.astype(rows.dtype)[:, None]
        out = jnp.zeros((count, rows.shape[-1]), rows.dtype)
        out = out.at[target].add(rows, mode="drop", wrap_negative_indices=False)
        if mode == _MEAN:
            out = out / jnp.maximum(sizes, 1)[:, None]
    sizes = jnp.pad(sizes, (0, offsets.shape[0] - count))
    return out, bag, sizes, largest


def _first_largest(rows, out, bag, count):
    """Return the position of the first row that holds the maximum of a bag."""
    n = rows.shape[0]
    position = jnp.where(rows == _rows(out, bag), jnp.arange(n)[:, None], n)
    return jax.ops.segment_min(position, bag, count)


def _rows_of_first_largest(rows, indices, bag, count):
    out, largest = _bag_max(jax.lax.stop_gradient(rows), indices, bag, count)
    first = _first_largest(rows, out, bag, count)
    return jnp.take_along_axis(rows, first, 0, mode="fill", fill_value=0), largest


@differentiated_as(_rows_of_first_largest)
def _bag_max(rows, indices, bag, count):
    """Return maxima over bags, and the index of the first row that holds each."""
    out = jax.ops.segment_max(rows, bag, count)
    first = _first_largest(rows, out, bag, count)
    return out, indices.at[first].get(mode="fill", fill_value=-1)


@op("_embedding_bag_dense_backward")
def _embedding_bag_dense_backward(
    grad,
    indices,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    per_sample_weights,
    padding_idx=-1,
):
    """Return the gradient of the table."""
    grad = grad.astype(opmath(grad.dtype))
    if mode == _MAX:
        columns = jnp.broadcast_to(jnp.arange(grad.shape[1]), maximum_indices.shape)
        table = jnp.zeros((num_weights, grad.shape[1]), grad.dtype)
        at = table.at[maximum_indices, columns]
        return at.add(grad, mode="drop", wrap_negative_indices=False)
    if mode == _MEAN:
        grad = grad / jnp.maximum(bag_size[: len(grad)], 1)[:, None]
    rows = grad[offset2bag]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.astype(rows.dtype)[:, None]
    return embedding_dense_backward(rows, indices, num_weights, padding_idx, scale_grad_by_freq)


@op("_embedding_bag_per_sample_weights_backward")
def _embedding_bag_per_sample_weights_backward(
    grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1
):
    """Return the gradient of the weights of a sum: each row times the gradient of its bag."""
    dtype = opmath(grad.dtype)
    out = (grad[offset2bag].astype(dtype) * _rows(weight, indices).astype(dtype)).sum(1)
    return out if padding_idx < 0 else jnp.where(indices == padding_idx, 0, out)
