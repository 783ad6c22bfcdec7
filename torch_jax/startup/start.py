"""The work of the first use of the device, in order, called by ``core.waking.wake``."""

from __future__ import annotations

from torch_jax.core import heap
from torch_jax.startup import process_exit


def start() -> None:
    """Import JAX and the table of operators, register the kernels, and apply the patches."""
    heap.keep()
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
    jax_core.unroll_threefry()
    registration.install()
    install.at_first_use()
    errors.in_memory = memory_report.shortest
    signals.install()
    lazy.install()
    disk_cache.install()
    process_exit.install()


def _import_jax() -> None:
    try:
        import jax  # noqa: F401
    except Exception as error:
        raise RuntimeError(
            f"device 'jax' needs a working jax, and importing it failed: {error!r}. "
            "Install it with: pip install jax"
        ) from error
