"""The form of a tensor over a storage, and new tensors of the same form over another."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from torch_jax._private import pytorch

_set_storage = torch.ops.aten.set_.source_Storage_storage_offset.redispatch


class Form(NamedTuple):
    """The dtype and geometry of a tensor over its storage; whether it is an inference tensor."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool
    neg: bool
    inference: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Form:
        return Form(
            tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()),
            tensor.is_conj(), tensor.is_neg(), tensor.is_inference(),
        )  # fmt: skip

    def over(self, memory: Any) -> torch.Tensor:
        """Return a new tensor of this form over a storage."""
        if not self.is_of_mode():
            with torch.inference_mode(self.inference):
                return self.over(memory)
        tensor = pytorch.create_empty_tensor((0,), self.dtype)
        _set_storage(pytorch.META_KEYS, tensor, memory, self.offset, self.size, self.stride)
        tensor = torch._conj(tensor) if self.conj else tensor
        return torch._neg_view(tensor) if self.neg else tensor

    def is_of_mode(self) -> bool:
        """Return whether tensors that are made now are inference tensors where this one is."""
        return self.inference == torch.is_inference_mode_enabled()
