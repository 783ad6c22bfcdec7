"""The writes, the result and the gradients of an observed call, described before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torch_jax.capture import autograd_nodes
from torch_jax.capture.observer import Observer
from torch_jax.capture.results import Results, Template
from torch_jax.capture.storages import outline, version_of
from torch_jax.core import errors, tracers, trees
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Node
from torch_jax.memory.storage import is_jax_tensor


class LeftBehind(NamedTuple):
    """The effects of a call: results of the graph by their numbers, arguments by their places."""

    result: Template  # what the function returned
    written: list[tuple[int, int]]  # places of storages met that hold something else: a result
    new: list[int]  # results that get new storages, in the order of the templates' outputs
    gradients: list[tuple[Any, Template | None]]  # those that it replaced, and what by
    without: list[Any]  # tensors that must have no ``.grad``
    moving: list[tuple[Any, torch.Tensor]]  # those whose ``.grad`` is read, and this call's
    raised: list[tuple[Any, bool, int]]  # that count writes, or their gradients do; how many
    connected: list[torch.Tensor]  # tensors of the result that gradients flow from
    positions: list[int]  # of these among the leaves of the result

    def counted(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """Return the tensors that count the writes of a call, as often as each is written."""
        found = []
        for owner, is_of_gradient, times in self.raised:
            tensor = trees.owned(owner, leaves)
            found += [tensor.grad if is_of_gradient else tensor] * times
        return found


def describe(observer: Observer, result: list[Any]) -> LeftBehind:
    """Describe a call that has returned ``result[0]``."""
    observer.forget_what_nobody_has()
    observer.copy_what_it_hands_on()
    leaves, _ = trees.flatten(result[0])
    positions = _connected(observer, leaves)
    connected = [leaves[at] for at in positions]
    observer.keep_out_what_is_wrong()
    results = Results(observer, set(map(id, connected)))
    template = results.of(result[0])
    gradients, without, moving = _gradients(observer, results)
    written = [
        (at, _number(observer, one.storage))
        for at, one in enumerate(observer.storages.met)
        if one.storage.array is not one.old()
    ]
    of_met = [(one.tensor, one.outline, one.node) for one in observer.storages.met]
    for tensor, before, node in observer.outlines + of_met:
        # a backward pass from the tensor would go through the call
        is_same = tensor.grad_fn is None or tensor.grad_fn is node
        has_history = not (is_same or autograd_nodes.is_spent(tensor))
        if has_history or outline(tensor) != before:
            observer.refuse(
                f"a tensor that is older than the call ({errors.describe(tensor)}) gets another "
                "form, history, requires_grad or hook: return a new tensor",
                is_of_first=True,
            )
    known = {id(memory) for memory in results.new} | autograd_nodes.saved_memories(connected)
    for stray in () if observer.makes_state else observer.storages.strays(known):
        observer.refuse(
            f"a new tensor ({tracers.shown(stray.array)}) is kept somewhere: return it, or write "
            "into one",
            is_of_first=True,
        )
    return LeftBehind(
        template, written, [_number(observer, memory) for memory in results.new],
        gradients, without, moving,
        _raised(observer, moving), connected, positions,
    )  # fmt: skip


def _number(observer: Observer, memory: Any) -> int:
    """Return which result of the graph a storage holds."""
    node = memory.array
    if type(node) is Node and node.recording is ACTIVE.recorder.recording:
        return node.index
    observer.refuse("a tensor was written past the recording")
    return 0


def _connected(observer: Observer, leaves: list[Any]) -> list[int]:
    """Return which leaves of the result have gradients that the function leaves to its caller."""
    if observer.went_back:
        return []
    return [
        at
        for at, leaf in enumerate(leaves)
        if is_jax_tensor(leaf)
        and leaf.grad_fn is not None
        and observer.storages.is_made(leaf.untyped_storage())
        and not autograd_nodes.is_spent(leaf)
    ]


def _gradients(observer: Observer, results: Results) -> tuple[list, list, list]:
    """Return the gradients that the call replaced, who must have none, and those that move."""
    changed, without, moving = [], [], []
    for known in observer.optimizers.gradients.values():
        tensor, before, after = known.tensor, known.before, known.tensor.grad
        owner = observer.owner(tensor)
        known.place = owner if type(owner) is int else None
        was_read = observer.optimizers.was_read(before)
        if was_read:
            moving.append((owner, before))
        elif before is None and not known.reset:
            without.append(owner)
        if before is after and not known.reset:
            continue
        # what is read must not be let go of before the call
        known.reset = not was_read and (known.reset or before is not None)
        changed.append((known, None if after is None else results.of(after)))
    return changed, without, moving


def _raised(observer: Observer, moving: list) -> list[tuple[Any, bool, int]]:
    """Return which tensors count the writes of the call, and how many each."""
    owners = {id(gradient): owner for owner, gradient in moving}
    counts = ((one.tensor, version_of(one.tensor) - one.version) for one in observer.storages.met)
    return [
        (owners.get(id(tensor), observer.owner(tensor)), id(tensor) in owners, times)
        for tensor, times in counts
        if times
    ]
