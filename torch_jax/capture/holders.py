"""Count who holds the memories that an observed call has made.

A later call makes a new result and new gradients. What else holds a memory, as an attribute or a
list does, would keep that of the observed call. Only counts of references show such a holder where
the result, or the graph of autograd behind it, holds the same memory.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.capture import autograd_nodes
from torch_jax.core import trees


class Holders:
    """The tensors that a result, the graph behind it and gradients hold."""

    def __init__(self, leaves: list[Any], form: Any, lists: Sequence[list[Any]], is_opaque: bool):
        """Take the leaves of a result, its form, and ``lists`` that hold leaves and gradients.

        Of an opaque graph Python functions, such as hooks, hold tensors that no count can know of.
        """
        self._form, self._lists, self._is_opaque = form, (leaves, *lists), is_opaque
        self._tensors: dict[int, torch.Tensor] = {}
        self._copies: Counter[int] = Counter()  # tensors that nodes made of results, by storage
        self._attributes: Counter[int] = Counter()  # of custom functions, by the id of the tensor
        for one in self._lists:
            for tensor in one:
                self._take(tensor)
        for node in autograd_nodes.nodes(leaves):
            self._take_from(node)

    def _take(self, tensor: Any) -> None:
        while isinstance(tensor, torch.Tensor) and id(tensor) not in self._tensors:
            self._tensors[id(tensor)] = tensor
            self._take(tensor.grad if tensor.is_leaf else None)
            tensor = tensor._base

    def _take_from(self, node: Any) -> None:
        self._take(getattr(node, "variable", None))
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            attributes, _ = trees.flatten(vars(node))
            self._attributes.update(map(id, attributes))
            self._is_opaque |= any(map(callable, attributes))
            for value in attributes:
                self._take(value)
        try:
            for value in autograd_nodes.saved(node):
                if isinstance(value, torch.Tensor) and value.grad_fn is node:
                    self._copies[id(value.untyped_storage())] += 1
                else:
                    self._take(value)
        except RuntimeError as error:  # a node that was gone through holds nothing
            self._is_opaque |= "modified by an inplace" in str(error)

    def others(self, memories: Iterable[Any]) -> list[Any]:
        """Return the storages that others hold, too."""
        kept, allowed = self._held_by_python(), self._copies.copy()
        opaque = set(allowed) if self._is_opaque else set()
        for tensor in self._tensors.values():
            memory = id(tensor.untyped_storage())
            allowed[memory] += 1
            if self._is_opaque or _hides_views(tensor):
                opaque.add(memory)

        def has_others(memory: Any) -> bool:
            tensors = pytorch.storage_use_count(memory._cdata) - 1  # but Python's object
            return id(memory) in kept or tensors > allowed[id(memory)]

        return [one for one in memories if id(one) not in opaque and has_others(one)]

    def _held_by_python(self) -> set[int]:
        """Return the ids of storages with a tensor that Python holds more often than its twin.

        Twins are held just as the result and the lists hold the tensors.
        """
        twins = {key: torch.empty(0) for key in self._tensors}
        lists = [[twins.get(id(one)) for one in held] for held in self._lists]
        result = trees.unflatten(self._form, lists[0])
        counts = [list(map(sys.getrefcount, one.values())) for one in (self._tensors, twins)]
        del result
        return {
            id(tensor.untyped_storage())
            for (key, tensor), count, of_twin in zip(self._tensors.items(), *counts, strict=True)
            # where C++ shares a tensor, it holds the Python object once
            if count - (tensor._use_count() > 1) - self._attributes[key] > of_twin
        }


def _hides_views(tensor: torch.Tensor) -> bool:
    """Return whether a view may hold the views that it was made of, which Python cannot reach."""
    base = tensor._base
    return base is not None and (base.dtype != tensor.dtype or tensor.is_conj() or tensor.is_neg())
