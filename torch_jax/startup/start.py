"""The work of the first use of the device, in order, called by ``core.waking.wake``."""

from __future__ import annotations

import ctypes

from torch_jax import config
from torch_jax.startup import process_exit

# Parameters of mallopt(3), and their values: an int each.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_PARAMETERS = ((_ARENA_MAX, 1), (_TRIM_THRESHOLD, 2**31 - 1), (_MMAP_THRESHOLD, 2**30))


def start() -> None:
    """Import JAX and the table of operators, register the kernels, and apply the patches."""
    _keep_host_memory()
    _import_jax()
    from torch_jax._private import jax_core
    from torch_jax.compiler import disk_cache
    from torch_jax.core import compilations, errors, signals
    from torch_jax.device import memory_report
    from torch_jax.dispatch import registration
    from torch_jax.patches import install
    from torch_jax.recorded import lazy

    compilations.listen()
    jax_core.hide_frames("torch", "torch_jax")
    registration.install()
    install.at_first_use()
    errors.in_memory = memory_report.shortest
    signals.install()
    lazy.install()
    disk_cache.install()
    process_exit.install()


def _keep_host_memory() -> None:
    """Let glibc keep freed memory (setting ``keep_host_memory``), before XLA's threads are there.

    XLA allocates the memory of a program's temporaries at each call on the CPU. glibc gives large
    blocks back to the kernel when they are freed, and the kernel clears each page when it is
    touched again: in a training step of a ResNet 28,000 pages, 15 to 19 % of its time. With one
    arena (each thread would have its own) and high thresholds the next call finds the pages of the
    one before. The process then keeps its largest size.
    """
    if not config.get("keep_host_memory"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # missing in macOS and musl
    if mallopt is not None:
        for name, value in _PARAMETERS:
            mallopt(name, value)


def _import_jax() -> None:
    try:
        import jax  # noqa: F401
    except Exception as error:
        raise RuntimeError(
            f"device 'jax' needs a working jax, and importing it failed: {error!r}. "
            "Install it with: pip install jax"
        ) from error
