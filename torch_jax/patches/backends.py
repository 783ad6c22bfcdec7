"""Start JAX's backends with threads for several CPU devices.

JAX takes the function when it starts its first backend: for a program that has called
``jax.devices()`` before it uses the device, it is JAX's own.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

from torch_jax.budgets import THREADS_OF_A_CPU_DEVICE
from torch_jax.core.patching import AT_FIRST_USE, around


@around("jaxlib.xla_client.make_cpu_client", AT_FIRST_USE)
def _patch_threads(original: Any, *args: Any, **kwargs: Any) -> Any:
    """XLA makes one thread for each of several CPU devices, and may wait for ever for one more.

    The threads launch programs and run them. A launch waits while 32 programs of its device have
    not ended; where a collective waits for one of those, and the launch has its thread, none of
    them ends, and XLA aborts the process after 40 seconds. XLA makes ``NPROC`` threads or more.
    """
    flag = r"--xla_force_host_platform_device_count=(\d+)"
    forced = re.findall(flag, os.environ.get("XLA_FLAGS", ""))
    devices = kwargs.get("num_devices") or int([1, *forced][-1])
    if devices == 1:
        return original(*args, **kwargs)
    with _at_least("NPROC", THREADS_OF_A_CPU_DEVICE * devices):
        return original(*args, **kwargs)


@contextlib.contextmanager
def _at_least(variable: str, least: int) -> Iterator[None]:
    """Give a variable of the environment this value for a block, unless its own is greater."""
    before = os.environ.get(variable)
    os.environ[variable] = str(max(least, int(before or 0)))
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
