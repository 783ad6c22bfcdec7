"""Arrays over the devices of many processes, of which each process sees its own part only.

All processes run one script, and so come to the same operators in the same order. What one process
would do alone here is done by all of them together: they lay out a value that each has, and gather
one that none has (:func:`whole`).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from torch_jax.core.x64 import x64


def is_wide(sharding: Any) -> bool:
    """Whether a sharding, or None, takes devices of other processes."""
    return sharding is not None and not sharding.is_fully_addressable


def laid(array: Any, sharding: Any) -> jax.Array:
    """A value that each process has, with a sharding over them all: each lays out its own part.

    ``jax.device_put`` would compare the values of all processes first.
    """
    with x64():
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return jax.device_put(array, sharding)
        host = np.asarray(array)
        return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)


def joined(part: np.ndarray, sharding: Any, shape: tuple[int, ...]) -> jax.Array:
    """An array of ``shape`` of which each process has a part."""
    with x64():
        return jax.make_array_from_process_local_data(sharding, part, shape)


def whole(array: jax.Array) -> jax.Array:
    """An array that this process can read: itself where it is whole here, else gathered by all."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return array
    with x64():
        return _gather(array.sharding.mesh)(array)


@functools.lru_cache(64)
def _gather(mesh: Any) -> Any:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))
