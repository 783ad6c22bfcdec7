"""What ``torch.autocast`` does that a device has no hook for."""

from __future__ import annotations

import functools
from typing import Any

from torch_jax.core.patching import AT_FIRST_USE, patch
from torch_jax.dispatch import autocast


@patch("torch.clear_autocast_cache", AT_FIRST_USE)
def _patch_autocast_cache(original: Any) -> Any:
    """Cast weights are kept until ``torch.autocast`` clears PyTorch's cache, which is in C++."""

    @functools.wraps(original)
    def clear_autocast_cache() -> None:
        autocast.clear_cache()
        original()

    return clear_autocast_cache
