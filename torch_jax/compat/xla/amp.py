"""``torch_xla.amp``: autocast, scaling of gradients, ``syncfree`` optimizers: PyTorch's own."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import SGD as SGD
from torch.optim import Adam as Adam
from torch.optim import AdamW as AdamW

from torch_jax._private import pytorch


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
