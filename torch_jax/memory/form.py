"""How a tensor sees its storage, as a value that can be compared and applied to another storage."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from torch_jax._private import pytorch

_set_storage = torch.ops.aten.set_.source_Storage_storage_offset.redispatch


class Form(NamedTuple):
    """How a tensor sees its storage."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool
    neg: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Form:
        """The form of a tensor."""
        return Form(
            tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()),
            tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip

    def over(self, memory: Any) -> torch.Tensor:
        """A new tensor that sees a storage so."""
        tensor = pytorch.create_empty_tensor((0,), self.dtype)
        _set_storage(pytorch.META_KEYS, tensor, memory, self.offset, self.size, self.stride)
        tensor = torch._conj(tensor) if self.conj else tensor
        return torch._neg_view(tensor) if self.neg else tensor
