"""Clearing of the casts that ``torch.autocast`` keeps on the device, which has no hook for it."""

from __future__ import annotations

from typing import Any

from torch_jax.core.patching import AT_FIRST_USE, around
from torch_jax.dispatch import autocast


@around("torch.clear_autocast_cache", AT_FIRST_USE)
def _patch_autocast_cache(original: Any) -> None:
    """Casts of weights are kept on the device, and PyTorch's C++ clears only a cache of its own."""
    autocast.clear_cache()
    original()
