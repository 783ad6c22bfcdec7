"""``torch_xla.experimental.scan_layers``: layers that are alike, compiled once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from torch_jax.interop import scan_layers as own


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: torch.Tensor,
    partition_fn: Any = None,
    is_layer_pure: bool = False,
) -> torch.Tensor:
    """Return the output of all layers; under ``torch_xla.compile`` one of them is compiled."""
    return own.scan_layers(list(layers), input_data)
