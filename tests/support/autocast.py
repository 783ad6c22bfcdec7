"""Regions of autocast on the device, and the number of casts in one."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def autocast(dtype: torch.dtype = torch.bfloat16, **options: Any) -> torch.autocast:
    """A region of this dtype."""
    return torch.autocast("jax", dtype=dtype, **options)


class Casts(TorchDispatchMode):
    """Counts the casts that reach the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))
