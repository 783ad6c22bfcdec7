"""``torch_xla.distributed.spmd.debugging``: the part of a tensor on each device."""

from __future__ import annotations

from typing import Any

import torch

from torch_jax.compat.xla.spmd import sharding_of


def visualize_tensor_sharding(t: torch.Tensor, **kwargs: Any) -> str:
    """Print a line for each device with the part that it holds; return the text."""
    found = sharding_of(t)
    if found is None:
        text = f"{tuple(t.shape)} on one device"
    else:
        parts = found.devices_indices_map(tuple(t.shape))
        text = "\n".join(f"{device}: {_shown(part)}" for device, part in parts.items())
    print(text)
    return text


def _shown(part: tuple[slice, ...]) -> str:
    ends = ((one.start or 0, "" if one.stop is None else one.stop) for one in part)
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in ends) + "]"
