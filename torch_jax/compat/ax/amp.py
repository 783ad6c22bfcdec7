"""``torchax.amp``: autocast, by PyTorch's own lists of operators."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from torch_jax._private import pytorch


def autocast(
    device: Any = None, dtype: torch.dtype = torch.bfloat16, env: Any = None
) -> AbstractContextManager[Any]:
    """Return a block of ``torch.autocast`` for the device."""
    return torch.autocast(pytorch.DEVICE_TYPE, dtype=dtype)
