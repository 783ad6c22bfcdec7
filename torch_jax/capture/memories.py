"""The storages of a call without Python: of arguments, of gradients, and fixed ones."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from torch_jax._private import dynamo
from torch_jax.core import trees
from torch_jax.memory.storage import is_jax_tensor

SHARES = "an argument shares memory with a tensor that the function holds"


class Memories:
    """The storages that a call reads or writes, in the order in which the observed one met them."""

    def __init__(self, observer: Any, left: Any):
        """Take what the observed call has met, and left behind."""
        met = [one.storage for one in observer.storages.met]
        leaves = {
            id(leaf.untyped_storage()): at
            for at, leaf in enumerate(observer.leaves)
            if is_jax_tensor(leaf)
        }
        self._given = [(at, leaves[id(one)]) for at, one in enumerate(met) if id(one) in leaves]
        self._first = [
            (leaf, weakref.ref(observer.leaves[leaf].untyped_storage())) for _, leaf in self._given
        ]
        self._held = set(map(id, met)) - leaves.keys()
        self._fixed: list[Any] = [None if id(one) in leaves else one for one in met]
        # gradients that were there before the call, and that it read
        gradients = [gradient for _, gradient in left.moving]
        self._owners = [owner for owner, _ in left.moving]
        self._places: list[Any] = [
            observer.storages.place_of(one.untyped_storage()) for one in gradients
        ]
        self._have_forms = dynamo.tensor_guards(gradients)
        self._memories = _memories(gradients)
        self._without_gradient = [owner for owner in left.without if type(owner) is int]
        self.captured = len(met) - len(self._given)  # how many of them belong to no argument

    def of_call(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the storages of a call with these arguments."""
        if not (self._given or self._owners):
            return self._fixed
        found = self._fixed.copy()
        for at, leaf in self._given:
            found[at] = leaves[leaf].untyped_storage()
        for at, gradient in zip(self._places, self._read(leaves), strict=True):
            found[at] = gradient.untyped_storage()
        return found

    def _read(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the gradients that a call reads."""
        return [trees.owned(owner, leaves).grad for owner in self._owners]

    def changed(self, leaves: Sequence[Any]) -> str | None:
        """Return why a call must not run on these arguments; None where it may."""
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf.untyped_storage()) in self._held:
                return SHARES
        if any(leaves[at].grad is not None for at in self._without_gradient):
            return "an argument has a gradient, where it had none"
        gradients = self._read(leaves)
        if any(one is None for one in gradients):
            return "a gradient is None, where there was one"
        if gradients and (
            not self._have_forms(*gradients) or _memories(gradients) != self._memories
        ):
            return "a gradient has another form, or lies elsewhere in its memory"
        return None

    def meets_another(self, leaves: Sequence[Any]) -> bool:
        """Return whether an argument has another memory than at all calls before.

        The function may hold the first one as well, and have read or written it by that name.
        """
        others = [one for one in self._first if leaves[one[0]].untyped_storage() is not one[1]()]
        if others:
            self._first = [one for one in self._first if one not in others]
        return bool(others)

    def is_fixed(self, places: Sequence[int], tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in one of the fixed storages at these places."""
        memory = tensor.untyped_storage()
        return any(self._fixed[at] is memory for at in places)

    def names(self) -> list[Any]:
        """Return a name for each storage, equal in two calls where they mean the same one.

        An argument's is its place, a gradient's its owner, all others' their id.
        """
        found: list[Any] = [id(one) for one in self._fixed]
        for at, leaf in self._given:
            found[at] = "argument", leaf
        for at, owner in zip(self._places, self._owners, strict=True):
            found[at] = "gradient", owner if type(owner) is int else id(owner)
        return found


def _memories(gradients: Sequence[torch.Tensor]) -> Any:
    """Return where gradients lie in memories, of which form, and how many memories they are."""
    storages: list[Any] = [one.untyped_storage() for one in gradients]
    places = [one.storage_offset() for one in gradients]
    return places, [one.array.shape for one in storages], len(set(map(id, storages)))
