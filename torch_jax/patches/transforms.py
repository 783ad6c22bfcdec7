"""Parts of PyTorch's dispatcher: the device's rules of ``torch.vmap``, its casts of autocast."""

from __future__ import annotations

from typing import Any

from torch_jax.core.patching import AT_FIRST_USE, around
from torch_jax.dispatch import autocast, batching


@around("torch._C._functorch._vmap_increment_nesting", AT_FIRST_USE)  # which Dynamo calls
@around("torch._functorch.predispatch._vmap_increment_nesting_impl", AT_FIRST_USE)
def _with_rules(original: Any, batch_size: Any, randomness: str) -> int:
    """PyTorch calls an operator without a batching rule once for each example, or refuses it.

    Registering rules at the first use of the device would make that a tenth slower.
    """
    batching.installed()
    return original(batch_size, randomness)


@around("torch.clear_autocast_cache", AT_FIRST_USE)
def _patch_autocast_cache(original: Any) -> None:
    """Casts of weights are kept on the device, and PyTorch's C++ clears only a cache of its own."""
    autocast.clear_cache()
    original()
