"""Waits for all programs that a device was given, also those whose results were dropped.

JAX waits for arrays. A program whose results were dropped has none left to wait for, but devices
run programs in order, the CPU those of one thread: the last program launched ends last.
"""

from __future__ import annotations

import functools
from typing import Any

from torch_jax._private import jax_core

NAME = "torch_jax_fence"


def wait() -> None:
    """Wait for all programs that this thread has launched on this process's devices."""
    if not jax_core.is_outside_traces():  # a trace would record the fence
        return
    run, starts = _fence()
    for array in [run(start) for start in starts]:  # all of them first: devices run side by side
        array.block_until_ready()


@functools.cache
def _fence() -> tuple[Any, list[Any]]:
    import jax

    def fence(start: Any) -> Any:
        return ~start

    fence.__name__ = NAME
    return jax.jit(fence), [jax.device_put(False, device) for device in jax.local_devices()]


def is_of_fence(module: str) -> bool:
    """Return whether a program, by the name of its module, is a fence, which no user ran.

    >>> is_of_fence("jit_torch_jax_fence"), is_of_fence("jit_step")
    (True, False)
    """
    return module == f"jit_{NAME}"
