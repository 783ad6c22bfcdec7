"""Random bits on the CPU: the 20 rounds of threefry as one kernel.

JAX writes them there as a loop, with equal bits. XLA takes three times as long to compile a loop,
and runs it on one core, over memory; rounds that are written out are fused with what uses them.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from torch_jax._private import jax_core

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def install() -> None:
    """Lower threefry by :func:`threefry` where JAX compiles for the CPU."""
    rule = mlir.lower_fun(threefry, multiple_results=True)
    mlir.register_lowering(jax_core.threefry(), rule, platform="cpu", inline=False)


def threefry(key1: Any, key2: Any, x1: Any, x2: Any) -> tuple[jax.Array, jax.Array]:
    """Return threefry2x32 of two counters under a key, all uint32 (Salmon et al., SC 2011).

    The first of the answers that come with its reference implementation, Random123:

    >>> zero = jax.numpy.uint32(0)
    >>> [hex(bits) for bits in threefry(zero, zero, zero, zero)]
    ['0x6b200159', '0x99ba4efe']
    """
    keys = key1, key2, key1 ^ key2 ^ np.uint32(_PARITY)
    x1, x2 = x1 + key1, x2 + key2
    for group in range(1, 6):
        for distance in _ROTATIONS[(group - 1) % 2]:
            x1 = x1 + x2
            x2 = x2 << np.uint32(distance) | x2 >> np.uint32(32 - distance)
            x2 = x2 ^ x1
        x1, x2 = x1 + keys[group % 3], x2 + keys[(group + 1) % 3] + np.uint32(group)
    return x1, x2
