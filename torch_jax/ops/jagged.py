"""Rows of a jagged tensor, whose places are offsets, to a padded tensor and back."""

import jax.numpy as jnp

from torch_jax.ops.registry import op
from torch_jax.ops.sort import search


def _one(offsets):
    if len(offsets) != 1:
        raise RuntimeError(f"one jagged dimension is known to have a kernel, not {len(offsets)}")
    return offsets[0]


@op("_jagged_to_padded_dense_forward", meta=False)
def jagged_to_padded(values, offsets, max_lengths, padding_value=0.0):
    """Return rows of ``values`` as ``[batch, length, ...]``; longer ones are cut."""
    bounds = _one(offsets)
    at = bounds[:-1, None] + jnp.arange(max_lengths[0])
    is_inside = at < bounds[1:, None]
    is_inside = is_inside.reshape(*is_inside.shape, *[1] * (values.ndim - 1))
    found = values.at[at].get(mode="clip")
    return jnp.where(is_inside, found, jnp.asarray(padding_value).astype(values.dtype))


def _fits(dense, offsets):
    size = dense.shape[1]
    fine = (jnp.diff(_one(offsets)) <= size).all()
    return fine, f"a batch item is longer than {size}, the padded input", RuntimeError


@op(
    "_padded_dense_to_jagged_forward",
    meta=False,
    check=_fits,
    concrete=lambda total_L=None: total_L is None,
    instead="name total_L, the number of rows",
)
def padded_to_jagged(dense, offsets, total_L=None):
    """Return the rows that lie within the offsets; of ``total_L`` rows, those beyond are zero."""
    bounds = _one(offsets)
    count = int(bounds[-1]) if total_L is None else total_L
    row = jnp.arange(count)
    item = search(bounds, row, right=True) - 1
    found = dense.at[item, row - bounds[item]].get(mode="fill", fill_value=0)
    is_inside = (row < bounds[-1]).reshape(-1, *[1] * (dense.ndim - 2))
    return jnp.where(is_inside, found, 0).astype(dense.dtype)
