"""The patches that are applied at ``import torch``, and those at the first use of the device.

The table itself fills as the modules of this folder are imported (:mod:`torch_jax.core.patching`).
Each replacement first asks whether a jax tensor is concerned, so that other devices keep PyTorch's
own behaviour.
"""

from __future__ import annotations

from torch_jax.core import patching
from torch_jax.patches import constructors as constructors
from torch_jax.patches import distributed as distributed
from torch_jax.patches import imports
from torch_jax.patches import modules as modules


def at_import() -> None:
    """Apply the patches that programs need before they first use the device."""
    patching.open_doors()
    patching.apply(patching.AT_IMPORT)
    imports.install()


def at_first_use() -> None:
    """Apply the patches that only jax tensors need, and that cost other devices a little."""
    from torch_jax.patches import (  # noqa: F401
        backends,
        distributions,
        dlpack,
        hook_errors,
        optimizers,
        processes,
        profiler,
        storages,
        tensors,
        transforms,
    )

    patching.apply(patching.AT_FIRST_USE)
