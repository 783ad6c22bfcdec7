"""Memories that PyTorch's CPU kernels and JAX share, where JAX computes on the CPU.

The memory behind a tensor is an array of JAX's or, after an eager operator, a CPU tensor of
PyTorch's. Neither is copied to become the other:

- ``storage.array``, of a storage that holds a CPU tensor, makes an array of it, which takes its
  place. From then on that memory is never written: arrays of JAX's never change.
- A kernel of PyTorch's that reads an array sees a CPU tensor. A kernel that writes gets a copy,
  which takes the place of the array; it is the storage's own, so that later writes copy nothing.

PyTorch's memory is aligned to 64 bytes, as XLA wants it; JAX copies other memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from torch_jax import config, target
from torch_jax._private import jax_core, pytorch
from torch_jax.core import errors, forks, tracers
from torch_jax.core.active import ACTIVE
from torch_jax.memory import dtypes, sharding, storage, transfer

_create = pytorch.create_empty_tensor
_outside_traces = jax_core.outside_traces()


class Elsewhere(Exception):
    """An operand lies where PyTorch's CPU kernels do not reach: in a trace, or on a mesh."""


class _Setting:
    """Knows whether eager operators are PyTorch's own kernels: ``SETTING.by_torch``."""

    by_torch: bool

    def __getattr__(self, name: str) -> Any:
        if name != "by_torch":
            raise AttributeError(name)
        wanted = config.get("eager_on_cpu") == "torch" and not forks.is_lost()
        # the value that another thread has set meanwhile counts
        return self.__dict__.setdefault(name, wanted and target.on_cpu())

    def forget(self, *_ignored: Any) -> None:
        """Read the setting again when an operator is called next."""
        self.__dict__.pop("by_torch", None)


SETTING = _Setting()
config.setters["eager_on_cpu"] = config.setters["target"] = SETTING.forget
forks.listeners.append(SETTING.forget)


def is_here() -> bool:
    """Return whether an operator that is called now runs by PyTorch's kernel, operands allowing."""
    return ACTIVE.recorder is None and holds_new()


def holds_new() -> bool:
    """Return whether new memory may be PyTorch's own; a recording is given it as an array."""
    return ACTIVE.tracer is None and SETTING.by_torch and _outside_traces()


# --- tensors of the device as CPU tensors ---------------------------------------------------------


def seen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the device as a CPU tensor of the same memory, which is only read.

    A CPU tensor without dimensions mixes with tensors of any device, and is returned unchanged.
    Where there is no such memory :class:`Elsewhere` is raised.
    """
    memory: Any = tensor.untyped_storage()
    held = memory.__dict__.get("host")
    if held is None or "array" in memory.__dict__:
        if storage.is_jax_storage(memory):
            held = as_tensor(_array(memory))
        elif tensor.dim() == 0 and tensor.device.type == "cpu":
            held = tensor
        else:
            raise Elsewhere
    if (
        tensor.size() == held.shape
        and tensor.is_contiguous()
        and not tensor.storage_offset()
        and tensor.dtype is held.dtype
        and not tensor.is_conj()
        and not tensor.is_neg()
    ):
        return held
    return tensor if held is tensor else _view(tensor, held)


def written(tensors: Iterable[Any], read: Callable[[], Any], write: Callable[[Any], Any]) -> Any:
    """Call ``write`` with the result of ``read``, to write memory of the device; return its result.

    Meanwhile no thread makes an array of that memory. ``read`` finds the CPU tensors, by
    :func:`seen`, and may wait for other threads. What is no tensor in ``tensors`` is skipped.
    """
    memories: list[Any] = [one.untyped_storage() for one in storage.tensors_in(list(tensors))]
    while True:
        before = list(map(_owned, memories))
        given = read()
        with storage.PUTTING:
            if all(_holds(memory, held) for memory, held in zip(memories, before, strict=True)):
                return write(given)


def _holds(memory: Any, held: torch.Tensor) -> bool:
    return memory.__dict__.get("host") is held and "array" not in memory.__dict__


def _owned(memory: Any) -> torch.Tensor:
    """Return the CPU tensor of a storage; an array is replaced by a copy first."""
    while (held := memory.__dict__.get("host")) is None or not _holds(memory, held):
        if not storage.is_jax_storage(memory):
            raise Elsewhere
        array = _array(memory)
        copy = as_tensor(array).clone()
        with storage.PUTTING:
            if memory.__dict__.get("array") is array:
                memory.host = copy
                del memory.array
    return held


def _array(memory: Any) -> Any:
    """Return the array of a storage, which lies on the first device alone."""
    array = memory.array
    if type(array) is not jax_core.array_type():
        array = storage.memory_in(memory) if not tracers.is_traced(array) else None
    if array is None or array.is_deleted():
        raise Elsewhere
    if sharding.Use.begun and not sharding.is_at_home(array):
        raise Elsewhere
    return array


def as_tensor(array: Any) -> torch.Tensor:
    """Return an array of the CPU's as a CPU tensor of its memory, which must not be written."""
    try:
        array.block_until_ready()
    except RuntimeError as error:  # NumPy's look at an array that has failed ends the process
        raise errors.translate(error, "while waiting for a value") from error
    try:
        return jax_core.tensor_maker()(array)
    except (BufferError, RuntimeError):  # DLPack lacks a few dtypes
        return transfer.borrowed(np.asarray(array), dtypes.to_torch(array.dtype))


def _view(tensor: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    found = view(held, tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()))
    found = torch._conj(found) if tensor.is_conj() else found
    return torch._neg_view(found) if tensor.is_neg() else found


def view(
    held: torch.Tensor, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    """Return a view of the memory of a contiguous CPU tensor, also by another dtype."""
    if dtype is held.dtype:
        return held.as_strided(size, stride, offset)
    found = torch.empty(0, dtype=dtype, device="cpu")
    return found.set_(held.untyped_storage(), offset, size, stride)


# --- CPU tensors as tensors of the device ---------------------------------------------------------


def taken(result: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the device with the memory, sizes and strides of a new CPU tensor."""
    is_plain = result.is_contiguous() and not result.storage_offset()
    if not is_plain or not (result.numel() or result.dim() == 1):  # memories have one dim then
        return _restrided(result)
    if result.is_conj() or result.is_neg():
        return taken(result.resolve_conj().resolve_neg())
    tensor = _over(result)
    stride = result.stride()
    if tensor.stride() == stride:
        return tensor
    return storage.restride(tensor, result.shape, stride, 0)  # a dim of one element has any


def _restrided(result: torch.Tensor) -> torch.Tensor:
    result = result.resolve_conj().resolve_neg()
    if result.storage_offset():
        result = result.clone()
    count = storage.span(result.shape, result.stride(), 0)
    tensor = _over(result.as_strided((count,), (1,), 0))
    return storage.restride(tensor, result.shape, result.stride(), 0)


def _over(host: torch.Tensor) -> torch.Tensor:
    tensor = _create(host.shape, host.dtype)
    memory: Any = tensor.untyped_storage()
    memory.host = host
    return tensor


# --- CPU tensors as arrays ------------------------------------------------------------------------


class _Array:
    """The attribute ``storage.array`` of storages with a CPU tensor, and no array yet."""

    def __get__(self, memory: Any, kind: type | None = None) -> Any:
        if memory is None:
            return self
        held = memory.__dict__
        with storage.PUTTING:
            if "array" not in held:
                if "host" not in held:
                    raise AttributeError("array")
                held["array"] = jax_core.array_maker()(held["host"])
            held.pop("host", None)
            return held["array"]


def install() -> None:
    """Let storages that hold CPU tensors give their arrays; called when the device awakes."""
    storages: Any = torch.UntypedStorage
    storages.array = _Array()


def held() -> list[torch.Tensor]:
    """Return the CPU tensors that are memories of the device at this moment."""
    kinds = (one for one in gc.get_objects() if type(one) is torch.UntypedStorage)
    return [one.__dict__["host"] for one in kinds if "host" in one.__dict__]
