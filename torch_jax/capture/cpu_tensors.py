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
from torch_jax.eager import variants
from torch_jax.memory import transfer
from torch_jax.memory.storage import held_by, is_jax_tensor

ITEM = torch.ops.aten._local_scalar_dense.default
_OF_DATA = torch.ops.aten.lift_fresh.default  # of torch.tensor, as_tensor, from_numpy
_RANDOM = torch.Tag.nondeterministic_seeded
_LATER = "later calls of a function under torch_jax.jit(pure=True)"
_DROP = "Do that outside of the function, or drop pure=True"


def is_host(value: Any) -> bool:
    """Return whether a value is a CPU tensor."""
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def looks_at(tensor: torch.Tensor) -> Exception:
    """Return the error for a function that asks for the value of a tensor."""
    where = " on the CPU" if is_host(tensor) else ""
    return tracers.DataDependentError(
        f"the value of a {errors.describe(tensor)} tensor{where} is asked for "
        f"({tracers.user_line()}), and {_LATER} skip its Python. Drop pure=True; or keep the value "
        "a tensor (torch.where), or return it and look at it outside."
    )


def goes_to(kwargs: dict[str, Any], kind: str) -> bool:
    """Return whether an operator is given a device of a kind."""
    return getattr(kwargs.get("device"), "type", None) == kind


class OfHost(NamedTuple):
    """A CPU tensor that later calls take to the device."""

    tensor: Any  # or its place among the arguments
    place: tuple[Any, Any, int]  # the size, stride and offset of the part that is taken

    def is_same(self, other: OfHost) -> bool:
        """Return whether another is the same argument or memory, or has the same elements."""
        one, two = self.tensor, other.tensor
        if self.place != other.place or type(one) is not type(two):
            return False
        if type(one) is int:
            return one == two
        return one.data_ptr() == two.data_ptr() or torch.equal(one, two)

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
        leaves, _ = trees.flatten((args, kwargs))
        operands = [leaf for leaf in leaves if is_host(leaf)]
        is_copy = func is torch.ops.aten._to_copy.default
        if goes_to(kwargs, "jax") if is_copy else any(map(is_jax_tensor, leaves)):
            kept = set(map(id, variants.written(func, args, kwargs)))
            moved = {id(leaf): self.to_device(leaf) for leaf in operands if id(leaf) not in kept}
            there = trees.map(lambda leaf: moved.get(id(leaf), leaf), (args, kwargs))
            try:
                return self._observer.on_device(func, *there)
            except RuntimeError:  # eagerly, too; or it wants a CPU tensor: lengths of sequences
                result = self._observer.on_device(func, args, kwargs)
            if all(map(self._is_fixed, operands)):
                return self._note_results(result)
            raise looks_at(operands[0])
        if func is ITEM and not self._is_fixed(operands[0]):
            raise looks_at(operands[0])
        if func._schema.is_mutable and not (operands and self.is_made(operands[0])):
            raise tracers.NotTraceableError(
                f"{func} writes into a CPU tensor ({tracers.user_line()}), which {_LATER} would "
                f"not do. {_DROP}."
            )
        is_random = _RANDOM in func.tags
        if is_random:
            self._observer.draws_on_host()
        result = func(*args, **kwargs)
        if func is _OF_DATA:  # what NumPy owns may hold something else at the next call
            return self._note_results(result) if result.untyped_storage().resizable() else result
        fixed = not is_random and all(map(self._is_fixed, operands))
        return self._note_results(result, fixed, operands)

    def _note_results(self, result: Any, fixed: bool = True, known: Sequence[Any] = ()) -> Any:
        """Note the CPU tensors among results, but for those that share memory with known ones."""
        memories = {id(tensor.untyped_storage()) for tensor in known}
        for tensor in trees.flatten(result)[0]:
            if is_host(tensor) and id(tensor.untyped_storage()) not in memories:
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
                f"device ({tracers.user_line()}), and {_LATER} skip what the CPU does. {_DROP}."
            )
        return made

    def _origin(self, tensor: torch.Tensor) -> Any:
        """Return the place of the argument that a tensor is a part of, else the tensor."""
        memory = tensor.untyped_storage()
        for at, leaf in enumerate(self._observer.leaves):
            if is_host(leaf) and leaf.untyped_storage() is memory:
                return at
        return tensor.detach()
