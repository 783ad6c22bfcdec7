"""``torch_xla.utils.checkpoint``: PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import checkpoint as own


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any
) -> Any:
    """Call a function whose values are computed again in the backward pass."""
    return own.checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
