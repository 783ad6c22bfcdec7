"""``torch_xla.amp`` and ``torch_xla.backends``: autocast, scaled gradients, precise products."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import SGD as SGD
from torch.optim import Adam as Adam
from torch.optim import AdamW as AdamW

from torch_jax import config
from torch_jax._private import pytorch

_OWN = {"default": "medium", "high": "high", "highest": "highest"}


class autocast(torch.autocast):
    """A block in which products are computed in a half type, bfloat16 by default."""

    def __init__(
        self,
        device: Any = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = None,
    ):
        super().__init__(pytorch.DEVICE_TYPE, dtype or torch.bfloat16, enabled, cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """Scales losses, for gradients of float16."""

    def __init__(self, *args: Any, use_zero_grad: bool = False, **kwargs: Any):
        super().__init__(pytorch.DEVICE_TYPE, *args, **kwargs)


def set_mat_mul_precision(precision: str) -> None:
    """Set the precision to ``"default"``, ``"high"`` or ``"highest"``."""
    if precision not in _OWN:
        raise ValueError(f"precision is one of {sorted(_OWN)}, not {precision!r}")
    config.set("matmul_precision", _OWN[precision])


def get_mat_mul_precision() -> str:
    """Return the precision; ``"default"`` where PyTorch's switches decide."""
    found = config.get("matmul_precision")
    return next((name for name, value in _OWN.items() if value == found), "default")
