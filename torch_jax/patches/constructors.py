"""Constructors, and ``torch.accelerator``: C++ has no such parts for a device of Python."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core import ordinals
from torch_jax.core.patching import AT_IMPORT, around, patch
from torch_jax.device import device_module as module
from torch_jax.device import streams
from torch_jax.memory.generators import JaxGenerator, names_jax

_JAX = pytorch.DEVICE_TYPE


@around("torch.UntypedStorage.__new__", AT_IMPORT)
def _patch_storage(original: Any, cls: type, *args: Any, **kwargs: Any) -> Any:
    """C++ has no allocator for ``torch.UntypedStorage(n, device="jax")``: it ends in a segfault.

    ``torch.load``, ``Storage.to`` and ``copy.deepcopy`` all call it.
    """
    if not names_jax(kwargs.get("device")):
        return original(cls, *args, **kwargs)
    size = args[0] if args else kwargs.get("size", 0)
    if not isinstance(size, int):
        return original(cls, *args).to(device=kwargs["device"])
    return torch.empty(size, dtype=torch.uint8, device=_JAX).untyped_storage()


@patch("torch.Generator", AT_IMPORT)
def _patch_generator(original: Any) -> Any:
    """``torch.Generator(device="jax")`` needs a hook in C++ that Python hooks do not have."""
    return streams.standing_for(original, JaxGenerator, names_jax)


for _kind in (streams.Stream, streams.Event):
    patch(
        f"torch.{_kind.__name__}",
        AT_IMPORT,
        why="For device jax it asks the device's guard in C++, which has no streams and events.",
    )(functools.partial(streams.standing_for, ours=_kind))


@around("torch.Tensor.pin_memory", AT_IMPORT)
def _patch_pin_memory(original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Pinned memory has no allocator on the device, and XLA needs none: a warning says so.

    Loaders that pin memory pin all tensors of a data set, those of the device included.
    """
    if self.device.type == _JAX:  # a loader's batch of a data set that is there already
        return self
    if not pytorch.is_accelerator() or self.device.type != "cpu":
        return original(self, *args, **kwargs)
    _warn_pin_memory()
    return self


@functools.cache
def _warn_pin_memory() -> None:
    warnings.warn(
        "pin_memory does nothing on device 'jax': XLA copies from ordinary host memory.",
        stacklevel=4,
    )


_ANSWERS = {
    "emptyCache": module.empty_cache,
    "emptyHostCache": module.empty_cache,  # C++ would end in a segfault
    "getDeviceCapability": module.get_device_capability,
    "getDeviceIndex": ordinals.current,
    "getDeviceStats": module.memory_stats,
    "getMemoryInfo": module.mem_get_info,
    "getStream": module.current_stream,
    "isAllocatorInitialized": lambda: True,
    "resetAccumulatedStats": module.reset_accumulated_memory_stats,
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
