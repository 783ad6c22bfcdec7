"""TorchScript modules, whose parameters live in C++, are moved, loaded and saved."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import AT_IMPORT, around, patch

_JAX = pytorch.DEVICE_TYPE


def crosses(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether exactly one of two tensors is on device jax."""
    return a is not b and (a.device.type == _JAX) != (b.device.type == _JAX)


def move(module: Any, fn: Any) -> None:
    """Replace a TorchScript module's parameters in C++, and in the list that an RNN has."""
    moved: dict[int, torch.Tensor] = {}
    for name, parameter in list(module._parameters.items()):
        with torch.no_grad():
            new = fn(parameter)
        if crosses(parameter, new):
            new = new.detach().requires_grad_(parameter.requires_grad)
            moved[id(parameter)] = new
            listed = pytorch.scripted_weights(module)
            pytorch.set_scripted(module, name, new)
            if listed:
                weights = [moved.get(id(weight), weight) for weight in listed]
                pytorch.set_scripted(module, "_flat_weights", weights)


@around("torch.jit.load", AT_IMPORT)
def _patch_load(original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """C++ reads a file's bytes into a storage's memory, which the device's storages lack."""
    if map_location is None or torch.device(map_location).type != _JAX:
        return original(f, map_location, *args, **kwargs)
    return original(f, "cpu", *args, **kwargs).to(map_location)


def _from_the_cpu(original: Any) -> Any:
    """C++ writes a storage's memory, which storages of the device do not have: a copy is saved."""

    @functools.wraps(original)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        held = (*self.parameters(), *self.buffers())
        if any(tensor.device.type == _JAX for tensor in held):
            return original(copy.deepcopy(self).cpu(), *args, **kwargs)
        return original(self, *args, **kwargs)

    return save


for _name in ("save", "save_to_buffer"):
    patch(f"torch.jit.RecursiveScriptModule.{_name}", AT_IMPORT)(_from_the_cpu)
