"""DLPack: other libraries get copies, since arrays are never written. JAX gets the arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import AT_FIRST_USE, around, patch
from torch_jax.core.x64 import x64
from torch_jax.memory import border, transfer

_JAX = pytorch.DEVICE_TYPE
_HOST = torch.utils.dlpack.DLDeviceType.kDLCPU


def _is_ours(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == _JAX


def _refuse(tensor: torch.Tensor, copy: bool | None = None) -> None:
    """Raise for tensors that PyTorch does not export from any device."""
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if copy is False:
        raise BufferError("device 'jax' exports copies only: its arrays are never written")


@around("torch.Tensor.__dlpack__", AT_FIRST_USE)
def _patch_export(
    original: Any, self: torch.Tensor, *, copy: bool | None = None, **options: Any
) -> Any:
    """PyTorch exports an address, which this device lacks: JAX exports a copy of its array."""
    if not _is_ours(self):
        return original(self, copy=copy, **options)
    _refuse(self, copy)
    array: Any = transfer.value_of(self)
    if options.get("max_version") and array.__dlpack_device__()[0] == _HOST:
        return original(self.cpu(), **options)  # JAX knows no capsules with a version
    with x64():
        array = array.copy()
    return array.__dlpack__(**{k: v for k, v in options.items() if v is not None})


@around("torch.Tensor.__dlpack_device__", AT_FIRST_USE)
def _patch_device(original: Any, self: torch.Tensor) -> Any:
    """PyTorch has no DLPack number for the device: JAX answers where the memory is."""
    if not _is_ours(self):
        return original(self)
    array: Any = transfer.value_of(self)
    return array.__dlpack_device__()


@around("torch.to_dlpack", AT_FIRST_USE)
def _patch_to_dlpack(original: Any, tensor: Any, **options: Any) -> Any:
    """In C++ a capsule of a tensor on the device would hold the address of no memory."""
    if _is_ours(tensor):
        return tensor.__dlpack__(**options)
    return original(tensor, **options)


@around("torch.from_dlpack", AT_FIRST_USE)
def _patch_from_dlpack(
    original: Any, ext_tensor: Any, *, device: Any = None, copy: bool | None = None
) -> Any:
    """PyTorch would copy a tensor that is on the device already: it shares its storage instead."""
    if not _is_ours(ext_tensor):
        if device is None or torch.device(device).type != _JAX:
            return original(ext_tensor, device=device, copy=copy)
        return _to_device(original, ext_tensor, copy)
    _refuse(ext_tensor)
    target = ext_tensor.device if device is None else torch.device(device)
    if target.type != _JAX and copy is False:
        raise BufferError(f"a tensor on device 'jax' goes to {target} as a copy only")
    alias = ext_tensor.detach()
    return alias.to(target, copy=True) if copy or target.type != _JAX else alias


def _to_device(original: Any, value: Any, copy: bool | None) -> torch.Tensor:
    """Return another library's value as a tensor of the device, copied if not an array of JAX."""
    if isinstance(value, jax.Array):
        return border.tensor_of(value.copy() if copy else value)
    if copy is False:
        raise BufferError(f"a {type(value).__name__} goes to device 'jax' as a copy only")
    return original(value).to(_JAX)


@patch("torch.Tensor", AT_FIRST_USE, is_registration=True)
def _add_jax_array(kind: Any) -> Callable[[], None]:
    """``jax.numpy.asarray`` asks for ``__jax_array__``, which PyTorch's tensors do not have.

    It is a property that tensors of other devices do not have, so JAX treats those as before.
    """
    kind.__jax_array__ = property(_jax_array)
    return lambda: delattr(kind, "__jax_array__")


def _jax_array(self: torch.Tensor) -> Callable[[], Any]:
    if not _is_ours(self):
        raise AttributeError(f"a tensor on {self.device} has no __jax_array__")
    return lambda: border.array_of(self)
