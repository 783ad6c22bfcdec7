"""The form of a tensor over its storage, and leaves that build a program's results per call.

A :class:`Form` can be compared, and applied to another storage. The other classes are leaves of
templates: each describes the origin of one result of a compiled call. Executors that run programs
(``capture/``, ``graphs/``) share these, and add leaves of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torch_jax._private import pytorch
from torch_jax.memory import storage

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
        """Return the form of a tensor."""
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


class NewTensor(NamedTuple):
    """A tensor over an output array of the program."""

    output: int
    form: Form
    whole: bool  # contiguous, and all of its memory
    number: int = 0  # number of the tensor object, for executors that name one object twice
    marks: Any = None  # other properties of the object, for executors that keep them

    @staticmethod
    def of(output: int, tensor: torch.Tensor, number: int = 0) -> NewTensor:
        """Return the leaf of a tensor of the trace, whose memory is an output."""
        form = Form.of(tensor)
        whole = storage.is_whole(tensor, storage.held_by(tensor)) and tensor.numel() > 0
        is_plain = form.is_of_mode() and not (form.conj or form.neg)
        return NewTensor(output, form, whole and is_plain, number)

    def build(self, outputs: Sequence[Any], storages: dict[int, Any]) -> torch.Tensor:
        """Return the tensor of one call; fill ``storages``, by output: tensors may share one."""
        memory = storages.get(self.output)
        if memory is not None:
            return self.form.over(memory)
        if self.whole:
            tensor = storage.wrap(outputs[self.output], self.form.dtype)
            storages[self.output] = tensor.untyped_storage()
            return tensor
        memory = storages[self.output] = storage.storage_of(outputs[self.output])
        return self.form.over(memory)


class InputView(NamedTuple):
    """A new tensor over the memory of an input."""

    input: Any  # as the executor names its inputs
    form: Form


class Argument(NamedTuple):
    """An argument itself, by its place among the arguments."""

    place: int


class Same(NamedTuple):
    """The same value at every call."""

    value: Any
