"""The functions of ``torch.accelerator``, whose C++ asserts for devices registered from Python."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core import ordinals
from torch_jax.core.patching import AT_IMPORT, patch
from torch_jax.device import device_module as module

_ANSWERS = {
    "synchronize": module.synchronize,
    "empty_cache": module.empty_cache,
    "memory_stats": module.memory_stats,
    "memory_allocated": module.memory_allocated,
    "max_memory_allocated": module.max_memory_allocated,
    "memory_reserved": module.memory_reserved,
    "max_memory_reserved": module.max_memory_reserved,
    "reset_peak_memory_stats": module.reset_peak_memory_stats,
    "reset_accumulated_memory_stats": module.reset_accumulated_memory_stats,
    "get_memory_info": module.mem_get_info,
    "get_device_capability": module.get_device_capability,
    "current_stream": module.current_stream,
    "set_device_index": module.set_device,
    "current_device_index": ordinals.current,
}


def _make(answer: Any, original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and accelerator.type == pytorch.DEVICE_TYPE:
            return answer(*args, **kwargs)
        return original(*args, **kwargs)

    return call


for _name, _answer in _ANSWERS.items():
    patch(
        f"torch.accelerator.{_name}",
        AT_IMPORT,
        why="C++ knows no allocator, streams and numbers of the device: ``torch.jax`` answers.",
    )(functools.partial(_make, _answer))
