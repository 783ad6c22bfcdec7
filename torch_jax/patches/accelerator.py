"""The functions of ``torch.accelerator``, whose C++ asserts for devices registered from Python."""

from __future__ import annotations

import functools
from typing import Any

from torch_jax._private import pytorch
from torch_jax.core import ordinals
from torch_jax.core.patching import AT_IMPORT, patch
from torch_jax.device import device_module as module

_ANSWERS = {
    "emptyCache": module.empty_cache,
    "getDeviceIndex": ordinals.current,
    "getDeviceStats": module.memory_stats,
    "getMemoryInfo": module.mem_get_info,
    "getStream": module.current_stream,
    "isAllocatorInitialized": lambda: True,
    "resetPeakStats": module.reset_peak_memory_stats,
    "setDeviceIndex": module.set_device,
    "synchronizeDevice": module.synchronize,
}


def _make(answer: Any, original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (answer if pytorch.is_accelerator() else original)(*args, **kwargs)

    return call


for _name, _answer in _ANSWERS.items():
    patch(
        f"torch._C._accelerator_{_name}",
        AT_IMPORT,
        why="C++ knows no allocator, streams and numbers of the device: ``torch.jax`` answers.",
    )(functools.partial(_make, _answer))
