"""A tensor's address, and its printed form."""

from __future__ import annotations

from typing import Any

import torch

from torch_jax._private import functorch, pytorch
from torch_jax.core import tracers
from torch_jax.core.patching import AT_FIRST_USE, around
from torch_jax.memory import sharding, storage

_JAX = pytorch.DEVICE_TYPE


@around("torch.Tensor.data_ptr", AT_FIRST_USE)
def _patch_data_ptr(original: Any, self: Any) -> int:
    """``data_ptr()`` is 0 in C++ for every jax tensor, but programs compare storages by it."""
    if self.is_cpu or self.device.type != _JAX:
        return original(self)
    memory = self.untyped_storage()
    if not storage.is_jax_storage(memory):
        return original(self)  # 0: a wrapper, as DTensor, whose tensors have the storages
    base = memory.data_ptr()
    return base and base + self.storage_offset() * self.element_size()


@around("torch._tensor_str._str", AT_FIRST_USE)
def _patch_str(original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> str:
    """Printing must fail at once under a trace, which has no values.

    Raised further down, the error would keep functorch disabled as long as its traceback lives.
    In a kernel under forward-mode AD, printing a tensor of a meta function must not fail.
    """
    if tracers.is_traced(storage.memory_if_any(self)):
        memory = storage.memory_of(self)  # of a trace on another thread, or that has ended
        if tracers.is_traced(memory):
            raise tracers.needs_value_on_host(memory)
    with functorch.tangents_known():
        return original(self, *args, **kwargs)


@around("torch._tensor_str._tensor_str", AT_FIRST_USE)
def _patch_contents(original: Any, self: torch.Tensor, indent: int) -> str:
    """Formatting a tensor calls dozens of tiny operators: the CPU does so with a copy."""
    if self.device.type != _JAX:
        return original(self, indent)
    may_be_split = sharding.Use.begun and type(storage.memory_if_any(self)) is not torch.Tensor
    memory = storage.memory_of(self) if may_be_split else None
    if memory is not None and not (memory.is_fully_addressable or memory.is_fully_replicated):
        return "<over many processes: .cpu(), called in all of them, gathers it>"
    return original(self.cpu(), indent)
