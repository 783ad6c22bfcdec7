"""``torch_xla.distributed.xla_multiprocessing``: a function in many processes, a device each."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch_jax.distributed import spawn as processes

_COUNTS = ("CPU_NUM_DEVICES", "GPU_NUM_DEVICES")


def spawn(
    fn: Callable[..., Any],
    args: tuple = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Run ``fn(index, *args)`` in new processes, or in this one if there is one only.

    Args:
      fn: called with the number of its process, and ``args``.
      args: further arguments, which are pickled.
      nprocs: how many; by default ``CPU_NUM_DEVICES`` or ``GPU_NUM_DEVICES``, else one.
      join: wait for all of them.
      daemon: whether they end with this process.
      start_method: ``"spawn"``, which is also taken for ``"fork"``: threads of JAX survive no fork.
    """
    count = nprocs or next((int(os.environ[n]) for n in _COUNTS if n in os.environ), 1)
    if count == 1:
        return fn(0, *args)
    return processes.spawn(fn, count, args, join=join, daemon=daemon)
