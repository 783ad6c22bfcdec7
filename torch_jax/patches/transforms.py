"""``torch.vmap``: the device's batching rules are registered at its first call."""

from __future__ import annotations

from typing import Any

from torch_jax.core.patching import AT_FIRST_USE, patch
from torch_jax.dispatch import batching


@patch("torch._C._functorch._vmap_increment_nesting", AT_FIRST_USE)  # which Dynamo calls
@patch("torch._functorch.predispatch._vmap_increment_nesting_impl", AT_FIRST_USE)
def _with_rules(original: Any) -> Any:
    """PyTorch calls an operator without a batching rule once for each example, or refuses it.

    Registering rules at the first use of the device would make that a tenth slower.
    """

    def increment(batch_size: Any, randomness: str) -> int:
        batching.installed()
        return original(batch_size, randomness)

    return increment
