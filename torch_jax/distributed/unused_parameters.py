"""``DistributedDataParallel(find_unused_parameters=True)`` and ``static_graph=True``.

The C++ reducer then makes a CPU tensor in pinned memory, as for any accelerator, in the middle of a
backward pass. This device has no such memory, and Python has no way to give C++ an allocator for
it: while such a module lives, backward passes run in a mode that gives the reducer ordinary
memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_jax._private import pytorch
from torch_jax.core import backward

_MARK = "_torch_jax_passes_for_pinned"


class _OrdinaryMemory(TorchDispatchMode):
    """Makes CPU tensors for pinned memory in ordinary memory, and marks them as pinned."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.is_pinned.default and hasattr(args[0], _MARK):
            return True
        if not kwargs.get("pin_memory"):
            return func(*args, **kwargs)
        result = func(*args, **(kwargs | {"pin_memory": False}))
        setattr(result, _MARK, True)
        return result


def serve(module: torch.nn.parallel.DistributedDataParallel) -> None:
    """Let backward passes run in this mode while the module lives, if its reducer needs it."""
    on_device = any(p.device.type == pytorch.DEVICE_TYPE for p in module.module.parameters())
    if on_device and (module.find_unused_parameters or module.static_graph):
        backward.AROUND[module] = _OrdinaryMemory
