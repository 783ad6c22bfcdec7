"""``torch.profiler``: what the device did is part of a profile, in tables and exported files."""

from __future__ import annotations

import functools
from typing import Any

from torch_jax._private import pytorch
from torch_jax.core.patching import AT_FIRST_USE, patch
from torch_jax.device.trace import profile as device_profile

_PROFILE = "torch.autograd.profiler.profile"


@patch(f"{_PROFILE}.__init__", AT_FIRST_USE)
def _patch_init(original: Any) -> Any:
    """C++ asks for a plug-in of its own where it is told of the device; and "cuda" may mean it."""

    @functools.wraps(original)
    def __init__(self: Any, enabled: bool = True, **given: Any) -> None:
        wanted = "cuda" if given.get("use_cuda") else given.get("use_device")
        device = device_profile.device_of(wanted)
        if enabled and device == pytorch.DEVICE_TYPE:
            # without the host's side nobody could tell which operator a kernel belongs to
            given |= {"use_cuda": False, "use_device": None, "use_cpu": True}
        original(self, enabled, **given)
        if enabled and device == pytorch.DEVICE_TYPE:
            self.use_device = device

    return __init__


@patch(f"{_PROFILE}._start_trace", AT_FIRST_USE)
def _patch_start(original: Any) -> Any:
    """It takes device events from plug-ins of C++ alone: JAX's profiler begins with it."""

    @functools.wraps(original)
    def _start_trace(self: Any) -> None:
        if self.use_device == pytorch.DEVICE_TYPE:
            device_profile.begin(self)
        original(self)

    return _start_trace


@patch(f"{_PROFILE}.__exit__", AT_FIRST_USE)
def _patch_exit(original: Any) -> Any:
    """JAX's profiler ends with it."""

    @functools.wraps(original)
    def __exit__(self: Any, *error: Any) -> Any:
        if self.enabled:
            device_profile.end(self)
        return original(self, *error)

    return __exit__


@patch(f"{_PROFILE}._parse_kineto_results", AT_FIRST_USE)
def _patch_parse(original: Any) -> Any:
    """Kernels of the device belong to its events."""

    @functools.wraps(original)
    def _parse_kineto_results(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, result, *args, **kwargs)
        if not device_profile.has_trace(self):
            return found
        return device_profile.add_kernels(self, found, result.trace_start_ns())

    return _parse_kineto_results


@patch(f"{_PROFILE}.export_chrome_trace", AT_FIRST_USE)
def _patch_export(original: Any) -> Any:
    """C++ writes the file: the device's part of it is added."""

    @functools.wraps(original)
    def export_chrome_trace(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        result = original(self, path, *args, **kwargs)
        if device_profile.has_trace(self):
            device_profile.add_to_file(self, path)
        return result

    return export_chrome_trace
