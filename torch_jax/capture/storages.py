"""The storages of one observed call, and where a later call finds each array."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_jax._private import pytorch
from torch_jax.budgets import ELEMENTS_OF_A_SMALL_CONSTANT
from torch_jax.compiler.donation import copy_of
from torch_jax.core import errors
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Node
from torch_jax.memory import storage
from torch_jax.memory.storage import is_jax_storage, memory_in


class OfStorage(NamedTuple):
    """An array that a later call finds in a storage, by the storage's place among those met."""

    at: int


class OfResult(NamedTuple):
    """An array that the program of the call has computed, by the number of the result."""

    node: int


class Fixed(NamedTuple):
    """An array that is the same at each call: the function makes it of constants."""

    array: Any

    def read(self, _leaves: Any) -> Any:
        return self.array

    def is_same(self, other: Fixed) -> bool:
        """Return whether another has the same form and, where they are few, elements."""
        one, two = self.array, other.array
        if (one.shape, one.dtype) != (two.shape, two.dtype):
            return False
        are_many = one.size > ELEMENTS_OF_A_SMALL_CONSTANT
        return are_many or np.asarray(one).tobytes() == np.asarray(two).tobytes()


class Met:
    """A storage that is older than the call, and the first tensor over it that an operator took."""

    def __init__(self, storage: Any, tensor: torch.Tensor, array: Any):
        self.storage, self.tensor = storage, tensor
        self.version = version_of(tensor)  # when it was met
        # gives the array that the call found, which is held until a graph runs, whether or not the
        # graph reads it; then a strong reference would prevent donation
        self.old, self.held = weakref.ref(array), array


class Storages:
    """The storages that an observed call finds and makes."""

    def __init__(self, leaves: list[Any], own: dict[int, torch.Tensor]):
        """Take the arguments, and tensors over the own memories of those that see copies."""
        self.met: list[Met] = []  # the older ones, in the order in which operators met them
        self._copies: dict[int, list] = {id(t.untyped_storage()): [] for t in own.values()}
        for at, t in own.items():
            known = leaves[at], t, storage.held_by(leaves[at])
            self._copies[id(t.untyped_storage())].append(known)
        self._at: dict[int, int] = {}  # in ``met``, by the id of the storage
        # by the id of the storage
        self._made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._sources: dict[int, tuple[Any, Any]] = {}  # by the id of the array

    def makes(self, tensor: torch.Tensor) -> None:
        """Note a tensor that the call has made, if its storage is a new one."""
        errors.refuse_sparse(tensor)
        memory: Any = tensor.untyped_storage()
        if is_jax_storage(memory) and id(memory) not in self._at:
            self._made[id(memory)] = memory
            if type(array := memory.array) is not Node and not self._is_known(array):
                self.comes_from(array, None)

    def is_made(self, memory: Any) -> bool:
        return self._made.get(id(memory)) is memory

    def disown(self, memory: Any) -> None:
        """Take a storage that the call has made for an older one, which later calls find."""
        self._made.pop(id(memory), None)

    def meet(self, memory: Any, tensor: torch.Tensor) -> bool:
        """Note an older storage, over which an operator takes a tensor: True where it is new."""
        if id(memory) in self._at:
            return False
        array = memory_in(memory)
        if type(self.source(array)) is not Fixed:  # storages share an array until one is written
            shared, array = array, copy_of(array)
            if not storage.put_back((memory,), (shared,), (array,)):  # another thread has written
                return self.meet(memory, tensor)
        self._at[id(memory)] = len(self.met)
        self.comes_from(array, OfStorage(len(self.met)))
        self.met.append(Met(memory, tensor, array))
        # the function reaches the originals, too, and may write them
        for part, own, copied in self._copies.pop(id(memory), ()):
            value, part.data = part.data, own
            if storage.held_by(value) is not copied:  # the copy was written meanwhile
                own.copy_(value)
        return True

    def place_of(self, memory: Any) -> int | None:
        """Return the place of a storage among those met, None where it is none of them."""
        return self._at.get(id(memory))

    def comes_from(self, array: Any, source: Any) -> None:
        """Note where later calls find an array; None: they make the same."""
        self._sources[id(array)] = weakref.ref(array), source

    def source(self, array: Any) -> Any:
        """Return where later calls find an array."""
        source = self._sources[id(array)][1] if self._is_known(array) else None
        return Fixed(array) if source is None else source

    def _is_known(self, array: Any) -> bool:
        known, _ = self._sources.get(id(array), (None, None))
        return known is not None and known() is array

    def is_of_others(self, array: Any) -> bool:
        """Return whether another thread has put an array into a storage that the call has met."""
        if type(array) is Node and array.recording is None:
            array = array.array
        if type(array) is Node:
            return array.recording.recorder is not ACTIVE.recorder
        return not self._is_known(array)

    def handed_on(self) -> list[tuple[Any, Any]]:
        """Return storages with the arrays that the call has found in others, and not computed."""
        met = [(one.storage, one.storage.array, one.old()) for one in self.met]
        written = [(memory, new) for memory, new, old in met if new is not old]
        found = [pair for pair in written if not self.is_of_others(pair[1])]
        made = [(one, one.array) for one in self._made.values()]
        found += [pair for pair in made if type(self.source(pair[1])) is not Fixed]
        return [pair for pair in found if type(pair[1]) is not Node]

    def computed(self) -> list[Any]:
        """Return the storages that hold what the call has computed, and that still exist."""
        made = [(one, one.array) for one in list(self._made.values())]
        sources = ((one, self.source(a.array if type(a) is Node else a)) for one, a in made)
        return [one for one, source in sources if type(source) is OfResult]


def outline(tensor: torch.Tensor) -> tuple:
    """Return what a call may change of a tensor beside its elements.

    >>> before, x = outline(torch.ones(2, 3)), torch.ones(2, 3).t_()
    >>> outline(x) == before
    False
    """
    hooks = pytorch.hooks_of(tensor).values()
    form = tensor.size(), tensor.stride(), tensor.requires_grad, tensor.is_leaf, tensor.retains_grad
    return id(tensor.untyped_storage()), *form, *(len(found or ()) for found in hooks)


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor has been written; 0 where PyTorch does not count."""
    return 0 if tensor.is_inference() else tensor._version
