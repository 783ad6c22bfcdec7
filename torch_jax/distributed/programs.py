"""Collectives as programs of JAX: each process passes its arrays, and gets its results.

A program runs over a mesh of one device a process. Its arrays claim to be replicated, though each
process has its own: ``shard_map`` hands each device its own one, and returns the result of each.
So no array gets another dimension for the processes, which would be a copy each way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from torch_jax._private import jax_processes
from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.core.x64 import x64

_AXIS = "processes"
_SAME = PartitionSpec()

Body = Callable[..., tuple[jax.Array, ...]]


def _sum(x: jax.Array) -> jax.Array:
    return lax.psum(x, _AXIS) if x.dtype != jnp.bool_ else REDUCTIONS["MAX"](x)


def _extreme(reduce: Callable[..., jax.Array]) -> Callable[[jax.Array], jax.Array]:
    def extreme(x: jax.Array) -> jax.Array:
        narrow = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x
        return reduce(narrow, _AXIS).astype(x.dtype)

    return extreme


# By the names of ``torch.distributed.ReduceOp``.
REDUCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "SUM": _sum,
    "AVG": lambda x: _sum(x) / lax.axis_size(_AXIS),
    "MIN": _extreme(lax.pmin),
    "MAX": _extreme(lax.pmax),
}


def all_reduce(op: str, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Return every array, reduced over the processes."""
    return tuple(map(REDUCTIONS[op], arrays))


def all_gather(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Return every array with a new first dimension, the processes."""
    return tuple(lax.all_gather(x, _AXIS) for x in arrays)


def all_gather_apart(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Return all processes' arrays, apart: those of the first array, of the second and so on."""
    return tuple(part for x in all_gather(*arrays) for part in x)


def reduce_scatter(op: str, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Return the part of this process of every array, in equal parts, reduced."""
    return tuple(_reduce_scatter(op, x) for x in arrays)


def _reduce_scatter(op: str, x: jax.Array) -> jax.Array:
    count = lax.axis_size(_AXIS)
    parts = x.reshape(count, x.size // count)
    if op == "SUM" and x.dtype != jnp.bool_:
        return lax.psum_scatter(parts, _AXIS)
    if op == "AVG":
        return lax.psum_scatter(parts, _AXIS) / count
    return lax.dynamic_index_in_dim(REDUCTIONS[op](parts), lax.axis_index(_AXIS), keepdims=False)


def broadcast(root: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Return the arrays of one process, by their bits: a sum of floats has no negative zeros."""
    is_root = lax.axis_index(_AXIS) == root
    return tuple(_broadcast(is_root, x) for x in arrays)


def _broadcast(is_root: jax.Array, x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(_broadcast(is_root, x.real), _broadcast(is_root, x.imag))
    bits = x.view(f"u{x.dtype.itemsize}")
    return lax.psum(jnp.where(is_root, bits, jnp.zeros_like(bits)), _AXIS).view(x.dtype)


def all_to_all(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Return the parts of all processes for this one, of every array in equal parts."""
    count = lax.axis_size(_AXIS)
    return tuple(lax.all_to_all(x.reshape(count, x.size // count), _AXIS, 0, 0) for x in arrays)


def exchange(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Return the arrays of all processes for this one, of arrays of one form, one a process."""
    return tuple(lax.all_to_all(jnp.stack(arrays), _AXIS, 0, 0))


@functools.lru_cache(ENTRIES_REMEMBERED)
def _mesh(ranks: tuple[int, ...]) -> Mesh:
    """Return a mesh over the first device of each of these processes."""
    first: dict[int, Any] = {}
    for device in sorted(jax.devices(), key=lambda device: device.id, reverse=True):
        first[device.process_index] = device
    return Mesh(np.array([first[rank] for rank in ranks]), (_AXIS,))


@functools.lru_cache(ENTRIES_REMEMBERED)
def _program(ranks: tuple[int, ...], body: Body, static: tuple) -> Callable[..., Any]:
    of_one = functools.partial(body, *static)
    return jax.jit(
        jax.shard_map(of_one, mesh=_mesh(ranks), in_specs=_SAME, out_specs=_SAME, check_vma=False)
    )


def run(
    ranks: tuple[int, ...], body: Body, static: tuple, arrays: Sequence[Any]
) -> list[jax.Array]:
    """Run a function of this module over processes, on the arrays of this one, and wait for it."""
    sharding = NamedSharding(_mesh(ranks), _SAME)  # arrays claim to have it
    with x64():
        own = [a if isinstance(a, jax.Array) else jnp.asarray(a) for a in arrays]
        given = [jax.make_array_from_single_device_arrays(a.shape, sharding, [a]) for a in own]
        results = jax.block_until_ready(_program(ranks, body, static)(*given))
        return [jax_processes.local_part(array) for array in results]
