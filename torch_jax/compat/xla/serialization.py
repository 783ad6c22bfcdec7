"""``torch_xla.utils.serialization``: files of tensors, which are those of ``torch.save``."""

from __future__ import annotations

from typing import Any

import torch

from torch_jax.compat.xla.xla_model import save as save


def load(path: Any) -> Any:
    """Return the contents of a file of :func:`save`, with tensors on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=False)
