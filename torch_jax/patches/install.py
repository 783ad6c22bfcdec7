"""What is replaced at ``import torch``, and what at the first use of the device.

The table itself fills as the modules of this folder are imported (:mod:`torch_jax.core.patching`).
Each replacement leaves other devices what they had: it first asks whether a jax tensor is
concerned.
"""

from __future__ import annotations

from torch_jax.core import patching
from torch_jax.patches import accelerator as accelerator
from torch_jax.patches import constructors as constructors
from torch_jax.patches import distributed as distributed
from torch_jax.patches import imports
from torch_jax.patches import modules as modules
from torch_jax.patches import parallel as parallel


def at_import() -> None:
    """What must be there before the device is first used."""
    patching.open_doors()
    patching.apply(patching.AT_IMPORT)
    imports.install()


def at_first_use() -> None:
    """What only matters once there are jax tensors, and costs other devices a little."""
    from torch_jax.patches import (  # noqa: F401
        autocast,
        backends,
        dlpack,
        hook_errors,
        jax_arrays,
        optimizers,
        processes,
        profiler,
        signals,
        storages,
        tensors,
        transforms,
    )

    patching.apply(patching.AT_FIRST_USE)
