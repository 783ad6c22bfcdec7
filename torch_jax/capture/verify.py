"""``jit(verify=...)``: calls that run both ways, to find what a compiled function got wrong.

A call runs compiled; then everything is put back as it was, and it runs eagerly. What they returned
and what they left in memory must agree; the eager call's is what stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_jax.core import errors
from torch_jax.memory.storage import is_jax, memory_in, replace


class VerificationError(AssertionError):
    """A compiled call and an eager one disagree."""


def verified(replay: Any, leaves: list[Any], eagerly: Callable[[], Any]) -> Any:
    """Run a call compiled and eagerly; the eager result, or :class:`VerificationError`.

    Raises what the compiled call raises where it does not fit any more.
    """
    replay.check(leaves)
    before = _Snapshot(replay, leaves)
    replay.donates = False
    try:
        compiled = _copies(replay(leaves, follows=False))
    finally:
        replay.donates = True
    left = before.differences()
    before.put_back()
    result = eagerly()
    replay.verified += 1
    _compare("what it returned", compiled, _copies(result))
    for index, (was, now) in enumerate(zip(left, before.differences(), strict=True)):
        _compare(f"what it wrote into {before.describe(index)}", was, now)
    return result


class _Snapshot:
    """Everything that a compiled call may write, as it was."""

    def __init__(self, replay: Any, leaves: list[Any]):
        given = [t for t in leaves if isinstance(t, torch.Tensor)]
        self.tensors = [t for t in (*replay.guards.tensors, *given) if is_jax(t)]
        self.storages: list[Any] = [t.untyped_storage() for t in self.tensors]
        self.arrays = [memory_in(memory) for memory in self.storages]
        self.host = [(t, t.detach().clone()) for t in replay.host_tensors()]
        self.gradients = [(t, t.grad) for t in replay.gradients.owners]
        self.places = [(place, place.now()) for place, _ in replay.effects]
        self.saved = [save() for save in replay.tape.saves()]
        self.generators = [(g, g.where()) for g in replay.generators()]

    def put_back(self) -> None:
        """Undo the compiled call."""
        for memory, array in zip(self.storages, self.arrays, strict=True):
            replace(memory, array)
        with torch.no_grad():
            for tensor, copy in self.host:
                tensor.copy_(copy)
        for tensor, gradient in self.gradients:
            tensor.grad = gradient
        for place, value in self.places:
            place.put(value)
        for undo in self.saved:
            undo()
        for generator, state in self.generators:
            generator.put(*state)

    def differences(self) -> list[torch.Tensor]:
        """What the memories hold now, on the host."""
        return _copies(self.tensors) + _copies([t.grad for t, _ in self.gradients])

    def describe(self, index: int) -> str:
        """What stands at an index of :meth:`differences`."""
        if index < len(self.tensors):
            return f"a {errors.describe(self.tensors[index])}"
        return f"the gradient of a {errors.describe(self.gradients[index - len(self.tensors)][0])}"


def _copies(value: Any) -> list[Any]:
    leaves = pytree.tree_leaves(value)
    return [v.detach().cpu().clone() if isinstance(v, torch.Tensor) else v for v in leaves]


def _compare(what: str, compiled: Any, eager: Any) -> None:
    try:
        torch.testing.assert_close(compiled, eager, equal_nan=True, rtol=1e-3, atol=1e-4)
    except (AssertionError, TypeError, ValueError) as error:
        raise VerificationError(
            f"a compiled call and an eager one disagree in {what}: {error}"
        ) from None
