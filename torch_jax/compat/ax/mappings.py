"""``torchax.ops.mappings``: tensors on the CPU and arrays as copies of each other, and dtypes."""

from __future__ import annotations

from typing import Any

import torch

from torch_jax.compat.ax.environment import default_env
from torch_jax.memory import dtypes


def t2j(tensor: torch.Tensor, use_dlpack: bool = True) -> Any:
    """Return a tensor of any device as an array."""
    return default_env().t2j_copy(tensor)


def j2t(array: Any, use_dlpack: bool = True) -> torch.Tensor:
    """Return an array as a tensor on the CPU."""
    return default_env().j2t_copy(array)


def t2j_dtype(dtype: torch.dtype | None) -> Any:
    """Return a dtype of PyTorch's as JAX's; None stays."""
    return None if dtype is None else dtypes.to_jax(dtype)


def j2t_dtype(dtype: Any) -> torch.dtype | None:
    """Return a dtype of JAX's as PyTorch's; None stays."""
    return None if dtype is None else dtypes.to_torch(dtype)
