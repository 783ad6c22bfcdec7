"""``torch.profiler`` shows the work of the device in its tables and exported files."""

from __future__ import annotations

from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import AT_FIRST_USE, around
from torch_jax.device.trace import profile as device_profile

_PROFILE, _JAX = "torch.autograd.profiler.profile", pytorch.DEVICE_TYPE


@around(f"{_PROFILE}.__init__", AT_FIRST_USE)
def _patch_init(original: Any, self: Any, enabled: bool = True, **given: Any) -> None:
    """C++ needs a plug-in of its own if ``use_device`` names the device; "cuda" may mean it."""
    wanted = "cuda" if given.get("use_cuda") else given.get("use_device")
    redirected = torch.cuda.is_available() and not pytorch.has_cuda()
    if is_ours := enabled and wanted in (_JAX, *["cuda"] * redirected):
        # without the host's events, kernels could not be matched with operators
        given |= {"use_cuda": False, "use_device": None, "use_cpu": True}
    original(self, enabled, **given)
    if is_ours:
        self.use_device = _JAX


@around(f"{_PROFILE}._start_trace", AT_FIRST_USE)
def _patch_start(original: Any, self: Any) -> None:
    """PyTorch takes device events from C++ plug-ins only: JAX's profiler must start with it."""
    if self.use_device == _JAX:
        device_profile.begin(self)
    original(self)


@around(f"{_PROFILE}.__exit__", AT_FIRST_USE)
def _patch_exit(original: Any, self: Any, *error: Any) -> Any:
    """JAX's profiler, which records the device's kernels, must end with PyTorch's."""
    if self.enabled:
        device_profile.end(self)
    return original(self, *error)


@around(f"{_PROFILE}._parse_kineto_results", AT_FIRST_USE)
def _patch_parse(original: Any, self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
    """PyTorch's events know no kernels of the device: they are added from JAX's trace."""
    found = original(self, result, *args, **kwargs)
    if not device_profile.has_trace(self):
        return found
    return device_profile.add_kernels(self, found, result.trace_start_ns())


@around(f"{_PROFILE}.export_chrome_trace", AT_FIRST_USE)
def _patch_export(original: Any, self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
    """C++ writes the file without the device's kernels: they are added to it afterwards."""
    result = original(self, path, *args, **kwargs)
    if device_profile.has_trace(self):
        device_profile.add_to_file(self, path)
    return result
