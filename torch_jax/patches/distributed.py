"""Programs on the CPU that PyTorch spreads: process groups, and ``nn.DataParallel``.

Both ask which accelerator there is, and take it though nothing of the program is on it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import AT_IMPORT, patch

_C10D = "torch.distributed.distributed_c10d"


def _is_accelerator() -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == pytorch.DEVICE_TYPE


@patch(f"{_C10D}.BackendConfig.__init__", _C10D)
def _patch_backends(original: Any) -> Any:
    """Without a backend, a process group takes that of the accelerator, of which there is none."""

    @functools.wraps(original)
    def init(self: Any, backend: Any) -> None:
        kinds = torch.distributed.Backend
        if str(backend) == kinds.UNDEFINED and _is_accelerator():
            backend = f"cpu:{kinds.default_device_backend_map['cpu']}"
        original(self, backend)

    return init


@patch(f"{_C10D}.Backend.default_device_backend_map", _C10D, is_registration=True)
def _name_backend(backends: dict[str, str]) -> Any:
    """``init_process_group(device_id=...)`` looks up the device's backend: gloo's, on copies."""
    backends.setdefault(pytorch.DEVICE_TYPE, backends["cpu"])
    return lambda: backends.pop(pytorch.DEVICE_TYPE)


@patch("torch.nn.parallel.data_parallel._get_available_device_type", AT_IMPORT)
def _patch_data_parallel(original: Any) -> Any:
    """``nn.DataParallel`` splits batches over the accelerator's devices: here there is one."""

    @functools.wraps(original)
    def available() -> str | None:
        found = original()
        return None if found == pytorch.DEVICE_TYPE else found

    return available
