"""The gradients that a program gives: each call's own, in fresh tensors where anybody would notice.

A step that begins with ``zero_grad`` leaves a new ``.grad`` on each parameter. If only the
parameter holds that of the last call, its tensor is used again: a new one costs microseconds.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.capture.results import Call, Template, all_leaves
from torch_jax.memory.form import NewTensor

_grad: Callable[[torch.Tensor], Any] = attrgetter("grad")


class Gradients:
    """The ``.grad`` of every tensor that gets a new one in a call, or has none after it."""

    def __init__(self, changed: list[tuple[Any, Template | None]], others: list[Template]):
        """Sort what each call does.

        Args:
          changed: gradients that the call replaced or reset, and what is there after it.
          others: the results of the function.
        """
        # these have none after a call
        cleared = [gradient for gradient, t in changed if t is None and gradient.reset]
        changed = [(gradient, t) for gradient, t in changed if t is not None or not gradient.reset]
        filled = [gradient for gradient, _ in changed]
        self._cleared, self._tensors = ([one.tensor for one in of] for of in (cleared, filled))
        # arguments, of which each call has others
        self._arguments = [
            (tensors, at, one.place)
            for tensors, gradients in ((self._cleared, cleared), (self._tensors, filled))
            for at, one in enumerate(gradients)
            if one.place is not None
        ]
        self._leaves = [None if t is None else t.leaves[0] for _, t in changed]
        self._reset = [gradient.reset for gradient, _ in changed]
        self._reusable = all(self._reset) and all(type(leaf) is NewTensor for leaf in self._leaves)
        self._indices = [leaf.output for leaf in self._leaves if type(leaf) is NewTensor]
        elsewhere = [leaf.output for leaf in all_leaves(others) if type(leaf) is NewTensor]
        used = [*self._indices, *set(elsewhere)]
        self._reusable &= len(set(used)) == len(used)
        self._given: list[Any] = []
        self._reused = False

    def clear(self, leaves: Sequence[Any]) -> None:
        """Let go, before a call, of gradients that it replaces, so that their memory is free.

        Otherwise old and new gradients would be in memory at once, a model's size more.
        """
        for tensors, at, place in self._arguments:
            tensors[at] = leaves[place]
        for tensor in self._cleared:
            tensor.grad = None
        self._reused = self._reusable and self._alone()
        if self._reused:
            for memory in self._storages:
                memory.array = None
            return
        self._given = []
        for tensor, reset in zip(self._tensors, self._reset, strict=True):
            if reset:
                tensor.grad = None

    def drop(self) -> None:
        """Remove the gradients, after a call that failed."""
        for tensor, reset in zip(self._tensors, self._reset, strict=True):
            if reset:
                tensor.grad = None

    def fill(self, call: Call) -> None:
        """Give every tensor its gradient, after a call."""
        if self._reused:
            outputs = call.outputs
            for memory, index in zip(self._storages, self._indices, strict=True):
                memory.array = outputs[index]
            return
        given = [None if leaf is None else call.leaf(leaf) for leaf in self._leaves]
        for tensor, gradient in zip(self._tensors, given, strict=True):
            tensor.grad = gradient
        if self._reusable:
            self._remember(given)

    def _remember(self, given: list[Any]) -> None:
        self._given = given
        self._storages = [gradient.untyped_storage() for gradient in given]
        self._addresses = [memory._cdata for memory in self._storages]

    def _alone(self) -> bool:
        """Return whether the tensors still have the gradients of the last call, unshared."""
        if not self._given:
            return False
        if not all(map(is_, map(_grad, self._tensors), self._given)):
            return False
        references, uses = _least()
        return (
            max(map(sys.getrefcount, self._given)) <= references
            and max(map(pytorch.storage_use_count, self._addresses)) <= uses
        )


@functools.cache
def _least() -> tuple[int, int]:
    """Return the references to an unshared gradient, and the uses of its storage.

    A gradient is held by its parameter, by our list, and by the argument of ``getrefcount``. How
    many references the parameter accounts for differs between releases of PyTorch: so count one.
    """
    parameter = torch.nn.Parameter(torch.zeros(1, device="jax"))
    given = [torch.zeros(1, device="jax")]
    parameter.grad = given[0]
    address = given[0].untyped_storage()._cdata
    return max(map(sys.getrefcount, given)), pytorch.storage_use_count(address)
