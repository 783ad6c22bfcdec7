"""Arrays over the devices of many processes, of which each process sees its own part only.

All processes run one script, and so call the same operators in the same order. Work that one
process does alone elsewhere is done by all of them together here: they lay out a value that each
has, and gather one that none has (:func:`whole`).
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from torch_jax import target
from torch_jax.budgets import ENTRIES_REMEMBERED, SECONDS_AFTER_AN_END, SECONDS_BETWEEN_QUESTIONS
from torch_jax.core.x64 import x64


def is_wide(sharding: Any) -> bool:
    """Return whether a sharding, or None, takes devices of other processes; a target has none."""
    return not (sharding is None or target.chosen() is not None or sharding.is_fully_addressable)


def laid(array: Any, sharding: Any) -> jax.Array:
    """Return a value that each process has, sharded; ``jax.device_put`` would compare them all."""
    with x64():
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return jax.device_put(array, sharding)
        host = np.asarray(array)
        return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)


def joined(part: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Return an array of which each process gives the part that its devices hold."""
    with x64():
        return jax.make_array_from_process_local_data(sharding, part)


def share(sharding: NamedSharding, dimension: int) -> int:
    """Return how many different parts of a dimension processes have: 1 if each has all."""
    names = tuple(sharding.spec)[dimension] or ()
    names = names if isinstance(names, tuple) else (names,)
    axes = [sharding.mesh.axis_names.index(name) for name in names]
    devices: Any = sharding.mesh.devices
    own = {
        tuple(place[axis] for axis in axes)
        for place in np.ndindex(devices.shape)
        if devices[place].process_index == jax.process_index()
    }
    return math.prod(devices.shape[axis] for axis in axes) // len(own)


def whole(array: Any) -> jax.Array:
    """Return an array that this process can read: itself, or all parts gathered from the others."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable:
        return array
    if not array.is_fully_replicated:
        sharding: Any = array.sharding
        with x64():
            array = _gather(sharding.mesh)(array)
    _wait(array)
    return array


# Returns the numbers of processes that have ended. Set where processes meet.
ended: Callable[[], list[int]] = list


def _wait(array: Any) -> None:
    """Wait for an array of all processes; JAX itself does not notice that one has ended."""
    pause, asked, gone_since = 1e-5, time.monotonic(), None
    while not array.is_ready():
        time.sleep(pause)
        pause = min(2 * pause, 0.01)
        now = time.monotonic()
        if now - asked > SECONDS_BETWEEN_QUESTIONS:
            asked, gone = now, ended()
            gone_since = (gone_since or now) if gone else None
            if gone_since is not None and now - gone_since > SECONDS_AFTER_AN_END:
                raise RuntimeError(
                    f"process {', '.join(map(str, gone))} of {jax.process_count()} has ended, and "
                    "a program over the devices of all waits for it: see what it has printed, and "
                    "start all of them again"
                )


@functools.lru_cache(ENTRIES_REMEMBERED)
def _gather(mesh: Any) -> Any:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))
