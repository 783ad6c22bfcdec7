"""``torch.vmap``: what the device brings for it is registered when it is first called."""

from __future__ import annotations

from typing import Any

from torch_jax.core.patching import AT_FIRST_USE, patch
from torch_jax.dispatch import batching


@patch("torch._C._functorch._vmap_increment_nesting", AT_FIRST_USE)  # which Dynamo calls
@patch("torch._functorch.predispatch._vmap_increment_nesting_impl", AT_FIRST_USE)
def _with_rules(original: Any) -> Any:
    """PyTorch runs operators that it has no rule for once for each example, or refuses them.

    To register rules at the first use of the device would take it a tenth longer.
    """

    def increment(batch_size: Any, randomness: str) -> int:
        batching.installed()
        return original(batch_size, randomness)

    return increment
