"""Factories of tensors like another one, for this device or another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.memory import sharding


def kernel(op: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``zeros_like`` and similar: results are sharded as their model, or on a device named."""

    def like(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != pytorch.DEVICE_TYPE:
            return op(torch.empty_like(args[0], device=device), *args[1:], **kwargs)
        made = call(*args, **kwargs)
        if sharding.Use.begun:
            sharding.follow(made, args[0])
        return made

    return like
