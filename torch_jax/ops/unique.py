"""Distinct elements: runs of equal ones, after a sort or as they come."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_jax.ops.buckets import compress
from torch_jax.ops.on_host import on_host
from torch_jax.ops.registry import op
from torch_jax.ops.sort import sorted_with_positions

_OPTIONS: dict[str, Any] = {
    "concrete": True,
    "meta": False,
    "instead": "use torch.sort and compare neighbours, which keeps the shape",
}


def _empty():
    return np.zeros(0, np.int64)


@functools.partial(jax.jit, static_argnums=1)
def _runs(flat, sort: bool):
    """Return a vector, sorted or not, the starts of its runs, and the run of each element."""
    order = None
    if sort:
        flat, order = sorted_with_positions(flat)
    begins = jnp.concatenate([jnp.ones(min(flat.size, 1), bool), flat[1:] != flat[:-1]])
    run = jnp.cumsum(begins) - 1
    return flat, begins, run if order is None else jnp.zeros_like(run).at[order].set(run)


def _counts(begins) -> np.ndarray:
    """Return the lengths of runs."""
    return np.diff(np.append(np.flatnonzero(on_host(begins)), begins.size))


def _unique(self, sort: bool, want_inverse: bool, want_counts: bool):
    flat, begins, run = _runs(self.reshape(-1), sort)
    return (
        compress(flat, begins),
        run.reshape(self.shape) if want_inverse else _empty(),
        _counts(begins) if want_counts else _empty(),
    )


@op("_unique2", **_OPTIONS)
def _unique2(self, sorted=True, return_inverse=False, return_counts=False):
    """Sort always. Every NaN is an element of its own."""
    return _unique(self, True, return_inverse, return_counts)


@op("_unique", **_OPTIONS)
def _unique_pair(self, sorted=True, return_inverse=False):
    """Do :func:`_unique2` without counts."""
    return _unique(self, True, return_inverse, False)[:2]


def _unique_rows(self, dim: int, sort: bool, want_inverse: bool, want_counts: bool):
    """Return distinct slices along ``dim``, on the host: their order is that of whole rows."""
    x = np.moveaxis(on_host(self), dim, 0)
    rows = x.reshape(len(x), math.prod(x.shape[1:]))
    order = np.arange(len(rows))
    if sort and rows.shape[1]:
        order = np.lexsort(rows.T[::-1])
    ranked = rows[order]
    begins = np.ones(len(rows), bool)
    begins[1:] = (ranked[1:] != ranked[:-1]).any(1)
    inverse = np.empty(len(rows), np.int64)
    inverse[order] = np.cumsum(begins) - 1
    return (
        np.moveaxis(x[order][begins], 0, dim),
        inverse if want_inverse else _empty(),
        _counts(begins) if want_counts else _empty(),
    )


@op("unique_dim", **_OPTIONS)
def unique_dim(self, dim, sorted=True, return_inverse=False, return_counts=False):
    """Return distinct slices, in lexicographic order."""
    return _unique_rows(self, dim, True, return_inverse, return_counts)


@op("unique_dim_consecutive", **_OPTIONS)
def unique_dim_consecutive(self, dim, return_inverse=False, return_counts=False):
    """Return the first of each run of equal slices."""
    return _unique_rows(self, dim, False, return_inverse, return_counts)


@op("unique_consecutive", **_OPTIONS)
def unique_consecutive(self, return_inverse=False, return_counts=False, dim=None):
    """Return the first of each run of equal elements, or of equal slices."""
    if dim is None:
        return _unique(self, False, return_inverse, return_counts)
    return _unique_rows(self, dim, False, return_inverse, return_counts)
