"""CPU tensors in a function whose Python is skipped: what goes to the device is read each time.

An argument on the CPU, or a tensor on the CPU that the function finds, may hold something else at
the next call. So what goes to the device is taken from it at each call. What is made of Python's
data is the same at each call. All else a later call could not repeat: the function must not compute
with CPU tensors, write into them, or look at their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torch_jax.core import errors, tracers, trees
from torch_jax.memory import transfer
from torch_jax.memory.storage import held_by, is_jax_tensor

ITEM = torch.ops.aten._local_scalar_dense.default
_TO_COPY = torch.ops.aten._to_copy.default
_RANDOM = torch.Tag.nondeterministic_seeded
_DROP = "Do that outside of the function, or drop pure=True"


def is_host(value: Any) -> bool:
    """Return whether a value is a CPU tensor."""
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def goes_to(kwargs: dict[str, Any], kind: str) -> bool:
    """Return whether an operator is given a device of a kind."""
    device = kwargs.get("device")
    return device is not None and device.type == kind


class OfHost(NamedTuple):
    """A CPU tensor that later calls take to the device."""

    tensor: Any  # or its place among the arguments
    place: tuple[Any, Any, int]  # the size, stride and offset of the part that is taken

    def read(self, leaves: Sequence[Any]) -> Any:
        """Return the array of one call."""
        tensor = trees.owned(self.tensor, leaves).detach()
        return held_by(transfer.to_device(tensor.as_strided(*self.place)))


class Host:
    """The CPU tensors of one observed call."""

    def __init__(self, observer: Any):
        self._observer = observer
        # storages that the call has made, by their id: whether each call makes the same of them
        self._made: dict[int, tuple[Any, bool]] = {}

    def operator(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run an operator that takes or makes CPU tensors."""
        leaves, form = trees.flatten((args, kwargs))
        if _crosses(func, leaves, kwargs):
            moved = [self.to_device(leaf) if is_host(leaf) else leaf for leaf in leaves]
            args, kwargs = trees.unflatten(form, moved)
            return self._observer.on_device(func, args, kwargs)
        operands = [leaf for leaf in leaves if is_host(leaf)]
        if func is ITEM:
            self._refuse_value(operands[0])
        if func._schema.is_mutable:
            self._refuse_write(func, operands[0] if operands else None)
        result = func(*args, **kwargs)
        fixed = _RANDOM not in func.tags and all(map(self._is_fixed, operands))
        known = {id(tensor.untyped_storage()) for tensor in operands}
        for tensor in trees.flatten(result)[0]:
            if is_host(tensor) and id(tensor.untyped_storage()) not in known:
                self.note_made(tensor, fixed)
        return result

    def note_made(self, tensor: torch.Tensor, fixed: bool = False) -> None:
        """Note a CPU tensor that the call has made, and whether each call makes the same."""
        self._made[id(tensor.untyped_storage())] = tensor.untyped_storage(), fixed

    def is_made(self, tensor: torch.Tensor) -> bool:
        """Return whether the call has made a CPU tensor."""
        return id(tensor.untyped_storage()) in self._made

    def _is_fixed(self, tensor: torch.Tensor) -> bool:
        """Return whether each call makes this very tensor."""
        return self._made.get(id(tensor.untyped_storage()), (None, False))[1]

    def _refuse_value(self, tensor: torch.Tensor) -> None:
        if not self._is_fixed(tensor):
            raise tracers.DataDependentError(
                f"the value of a {errors.describe(tensor)} tensor on the CPU is asked for "
                f"({tracers.user_line()}), and later calls of a function under "
                f"torch_jax.jit(pure=True) skip its Python. {_DROP}."
            )

    def _refuse_write(self, func: Any, tensor: torch.Tensor | None) -> None:
        if tensor is None or not self.is_made(tensor):
            raise tracers.NotTraceableError(
                f"{func} writes into a CPU tensor ({tracers.user_line()}), which later calls of a "
                f"function under torch_jax.jit(pure=True) would not do. {_DROP}."
            )

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a CPU tensor on the device, which each call makes of it again."""
        made = transfer.to_device(tensor.detach())
        self._observer.storages.makes(made)
        if not self.is_made(tensor):
            place = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
            self._observer.storages.comes_from(held_by(made), OfHost(self._origin(tensor), place))
        elif not self._is_fixed(tensor):
            raise tracers.NotTraceableError(
                f"a {errors.describe(tensor)} tensor is computed on the CPU and taken to the "
                f"device ({tracers.user_line()}), and later calls of a function under "
                f"torch_jax.jit(pure=True) skip what the CPU does. {_DROP}."
            )
        return made

    def _origin(self, tensor: torch.Tensor) -> Any:
        """Return the place of the argument that a tensor is a part of, else the tensor."""
        memory = tensor.untyped_storage()
        for at, leaf in enumerate(self._observer.leaves):
            if is_host(leaf) and leaf.untyped_storage() is memory:
                return at
        return tensor.detach()


def _crosses(func: Any, leaves: list[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether an operator takes CPU tensors to the device."""
    if func is _TO_COPY:
        return goes_to(kwargs, "jax")
    return any(map(is_jax_tensor, leaves))
