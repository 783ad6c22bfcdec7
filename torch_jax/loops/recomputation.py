"""``torch.utils.checkpoint`` in a program: computed twice, not merged by XLA, and not too early.

PyTorch runs a checkpointed function again in the backward pass. In one program XLA would merge both
runs, or do the second long before its turn. So the second takes its arguments from behind a barrier
with the gradient that the backward pass has come to, as in ``jax.checkpoint``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from jax import lax

from torch_jax._private import pytorch
from torch_jax.core import trees
from torch_jax.dispatch.call_jax import jax_function
from torch_jax.memory.storage import is_jax_tensor

_barrier = jax_function(lambda *arrays: lax.optimization_barrier(arrays))


class Recomputed:
    """A checkpointed function, whose second run is kept apart from the first."""

    def __init__(self, function: Callable[..., Any]):
        self.function, self.runs = function, 0
        self.inputs: dict[int, torch.Tensor] = {}  # among its arguments, by their place
        self.behind: dict[int, torch.Tensor] = {}  # their values behind the gradients so far
        self.context: Any = None  # of the first run, which may keep values for the second

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        if self.runs == 1:
            self.inputs = {at: arg for at, arg in enumerate(args) if is_jax_tensor(arg)}
            return self.function(*args, **kwargs)
        behind, given = self.behind, enumerate(args)
        args = tuple(_Instead.apply(arg, behind[at]) if at in behind else arg for at, arg in given)
        self.inputs, self.behind, self.context = {}, {}, None  # the graph may live for long
        return self.function(*args, **kwargs)

    def contexts(self, make: Callable[[], tuple[Any, Any]]) -> Callable[[], tuple[Any, Any]]:
        """Return ``make``, which gives the contexts of both runs, with the first one remembered."""

        def made() -> tuple[Any, Any]:
            self.context, again = make()
            return self.context, again

        return made

    def watch(self, results: Any) -> Any:
        """Have the gradients of the results known; returns the results."""
        behind = weakref.WeakMethod(self.put_behind)  # hooks, which the graph holds, hold no values
        for result in trees.flatten(results)[0]:
            if is_jax_tensor(result) and result.grad_fn is not None:
                result.register_hook(lambda gradient: (put := behind()) and put(gradient))
        return results

    def put_behind(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Let the second run begin after this gradient of a result, and not before."""
        if not self.inputs:
            return None  # it has begun by the gradient of another result
        kept = [one for one in pytorch.kept_by_policy(self.context) if is_jax_tensor(one.val)]
        given = [self.behind.get(at, tensor) for at, tensor in self.inputs.items()]
        with torch.no_grad():
            value, *behind = _barrier(gradient, *given, *(one.val for one in kept))
        self.behind = dict(zip(self.inputs, behind, strict=False))
        for one, tensor in zip(kept, behind[len(given) :], strict=True):
            if one.version == one.val._version:  # what was written since is an error of its own
                one.val, one.version = tensor, tensor._version
        return _Instead.apply(gradient, value)


class _Instead(torch.autograd.Function):
    """The value of another tensor in place of a tensor's own; gradients pass."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return a view of the value: the tensor itself must not be returned."""
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        return gradient, None
