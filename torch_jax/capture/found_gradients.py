"""The gradients that a program reads: at each call those that it finds then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_jax._private import dynamo


def grad_of(owner: Any, leaves: Sequence[Any]) -> Any:
    """Return the ``.grad`` of a tensor, or of the argument at a place."""
    return (leaves[owner] if type(owner) is int else owner).grad


class FoundGradients:
    """Gradients that were there before a call, and that it read.

    Attributes:
      places: of their storages, among those that the call met.
    """

    def __init__(
        self, found: Sequence[tuple[Any, torch.Tensor]], place_of: Callable[[Any], int | None]
    ):
        """``found`` are the owners, tensors or places of arguments, and what the call found."""
        self._owners = [owner for owner, _ in found]
        gradients = [gradient for _, gradient in found]
        self.places: list[Any] = [place_of(one.untyped_storage()) for one in gradients]
        self._have_forms = dynamo.tensor_guards(gradients)
        self._memories = _memories(gradients)

    def owners(self) -> list[tuple[Any, int]]:
        """Return the places of the storages, and the argument or the id of each owner."""
        ids = [one if type(one) is int else id(one) for one in self._owners]
        return list(zip(self.places, ids, strict=True))

    def changed(self, leaves: Sequence[Any]) -> str | None:
        """Return how the gradients differ from what the program reads; None where they do not."""
        if not self._owners:
            return None
        gradients = [grad_of(owner, leaves) for owner in self._owners]
        if any(one is None for one in gradients):
            return "a gradient is None, where there was one"
        if not self._have_forms(*gradients) or _memories(gradients) != self._memories:
            return "a gradient has another form, or lies elsewhere in its memory"
        return None

    def put_into(self, storages: list[Any], leaves: Sequence[Any]) -> None:
        """Put the storages of a call's gradients to their places."""
        for at, owner in zip(self.places, self._owners, strict=True):
            storages[at] = grad_of(owner, leaves).untyped_storage()


def _memories(gradients: Sequence[torch.Tensor]) -> Any:
    """Return where gradients lie in memories, of which form, and how many memories they are."""
    storages: list[Any] = [one.untyped_storage() for one in gradients]
    places = [one.storage_offset() for one in gradients]
    return places, [one.array.shape for one in storages], len(set(map(id, storages)))
