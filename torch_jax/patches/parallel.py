"""``nn.DataParallel`` and its functions, for a process with one device.

PyTorch asks in Python for the accelerator; its copies between devices are C++, which a build
without CUDA lacks.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import AT_IMPORT, around
from torch_jax.patches.distributed import is_here

_JAX = pytorch.DEVICE_TYPE
_COMM = "torch.nn.parallel.comm"


@around("torch.nn.parallel.data_parallel", AT_IMPORT)
def _patch_function(original: Any, module: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """``nn.parallel.data_parallel`` raises without several devices: on one it calls the module."""
    if not is_here(module):
        return original(module, inputs, *args, **kwargs)
    given = dict(zip(("device_ids", "output_device", "dim", "module_kwargs"), args))  # noqa: B905
    inputs = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    return module(*inputs, **((given | kwargs).get("module_kwargs") or {}))


def _concerns(tensors: Any) -> bool:
    return any(t.device.type == _JAX for t in tensors)


@around(f"{_COMM}.broadcast", AT_IMPORT)
def _patch_broadcast(original: Any, tensor: Any, devices: Any = None, *, out: Any = None) -> Any:
    """PyTorch's C++ copies a tensor to CUDA devices only: Python copies it for this device."""
    if not _concerns([tensor]):
        return original(tensor, devices, out=out)
    if out is not None:
        return tuple(one.copy_(tensor) for one in out)
    return tensor, *(tensor.clone() for _ in list(devices)[1:])


@around(f"{_COMM}.broadcast_coalesced", AT_IMPORT)
def _patch_broadcast_coalesced(
    original: Any, tensors: Any, devices: Any, *args: Any, **kwargs: Any
) -> Any:
    """PyTorch's C++ copies lists of tensors to CUDA devices only: Python copies them here."""
    if not _concerns(tensors):
        return original(tensors, devices, *args, **kwargs)
    return [list(tensors), *([t.clone() for t in tensors] for _ in list(devices)[1:])]


@around(f"{_COMM}.scatter", AT_IMPORT)
def _patch_scatter(
    original: Any,
    tensor: Any,
    devices: Any = None,
    chunk_sizes: Any = None,
    dim: int = 0,
    streams: Any = None,
    *,
    out: Any = None,
) -> Any:
    """PyTorch's C++ splits a tensor over CUDA devices only: Python splits it for this device."""
    if not _concerns([tensor, *(out or ())]) and not (devices and _is_accelerator()):
        return original(tensor, devices, chunk_sizes, dim, streams, out=out)
    if out is not None:
        sizes = [one.size(dim) for one in out]
        pairs = zip(out, tensor.split(sizes, dim), strict=True)
        return tuple(one.copy_(part) for one, part in pairs)
    parts = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    return tuple(part.to(_JAX) for part in parts)


@around(f"{_COMM}.gather", AT_IMPORT)
def _patch_gather(
    original: Any, tensors: Any, dim: int = 0, destination: Any = None, *, out: Any = None
) -> Any:
    """PyTorch's C++ joins parts from CUDA devices only: Python joins those of this device."""
    tensors = list(tensors)
    if not _concerns(tensors):
        return original(tensors, dim, destination, out=out)
    if out is not None:
        return out.copy_(torch.cat(tensors, dim))
    is_on_cpu = destination == -1 or str(destination) == "cpu"
    return torch.cat(tensors, dim).to("cpu" if is_on_cpu else _JAX)


def _is_accelerator() -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == _JAX
