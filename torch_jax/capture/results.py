"""The effects of an observed call: its result, writes and gradients, described before it runs.

Templates say how each later call makes the values that a function returns. A template is a tree
whose leaves say where a value comes from: out of the program, a view of something that was there
before, an argument, or just the same object.
"""

from __future__ import annotations

import enum
import functools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torch_jax._private import pytorch
from torch_jax.capture.observer import Observer
from torch_jax.capture.storages import Fixed, outline, version_of
from torch_jax.core import autograd_nodes, errors, trees
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Node
from torch_jax.memory import storage
from torch_jax.memory.forms import Form

_PLAIN = (
    int, float, complex, str, bytes, bool, type(None), type(Ellipsis), range, slice, enum.Enum,
    torch.dtype, torch.device, torch.Size, torch.nn.Module, torch.optim.Optimizer,
)  # fmt: skip
_ANCHOR = torch.empty(0, requires_grad=True)


class NewTensor(NamedTuple):
    """A tensor over an output of the program."""

    output: int
    form: Form
    is_whole: bool  # contiguous, and all of its memory
    number: int  # of the tensor object, which a result may hold twice
    is_spent: bool  # whether a backward pass inside the function has gone through its graph


class Older(NamedTuple):
    """An argument, by its place, or an older tensor; with a form, a new tensor over its memory."""

    owner: Any
    form: Form | None = None
    number: int = -1  # of the new tensor object


class GradientOf(NamedTuple):
    """The ``.grad`` that a call finds on a tensor, by its place among the arguments or itself."""

    owner: Any


class Same(NamedTuple):
    """The same value at every call."""

    value: Any


class FixedTensor(NamedTuple):
    """A new tensor of the same elements at each call."""

    made: Fixed
    form: Form
    number: int  # of the tensor object


@functools.cache
def _spent() -> Any:
    """Return the node of results through whose graph a backward pass went inside: no other can."""
    return pytorch.NodeThatRaises(
        "Trying to backward through the graph a second time: the function under torch_jax.jit has "
        "run a backward pass through it already",
        2,
    )


class Template(NamedTuple):
    """A value by its form and its leaves."""

    form: Any
    leaves: list[Any]

    def build(self, call: Call) -> Any:
        return trees.unflatten(self.form, list(map(call.leaf, self.leaves)))

    def difference(self, other: Template) -> str | None:
        """Return how the value of another call differs, in words; None where it does not."""
        if self.form != other.form:
            return "it returned another structure"
        for was, now in zip(self.leaves, other.leaves, strict=True):
            if not _alike(was, now):
                return f"it returned {_shown(now)}, where it had returned {_shown(was)}"
        return None


class Call:
    """The values of one call, out of which templates are built."""

    def __init__(
        self, arguments: Sequence[Any], outputs: list[Any], storages: dict[int, Any] | None = None
    ):
        self.arguments, self.outputs = arguments, outputs
        self._storages = storages or {}  # new ones, by output
        self._tensors: dict[int, torch.Tensor] = {}  # new ones, by their number in the templates

    def leaf(self, leaf: Any) -> Any:
        kind = type(leaf)
        if kind is Same:
            return leaf.value
        if kind is GradientOf:
            return trees.owned(leaf.owner, self.arguments).grad
        if kind is Older and leaf.form is None:
            return trees.owned(leaf.owner, self.arguments)
        if (tensor := self._tensors.get(leaf.number)) is None:
            tensor = self._tensors[leaf.number] = self._new(leaf)
        return tensor

    def _new(self, leaf: Any) -> torch.Tensor:
        kind = type(leaf)
        if kind is FixedTensor:
            return leaf.form.over(storage.wrap(leaf.made.array).untyped_storage())
        if kind is Older:
            return leaf.form.over(trees.owned(leaf.owner, self.arguments).untyped_storage())
        memory, array = self._storages.get(leaf.output), self.outputs[leaf.output]
        if memory is None and leaf.is_whole:
            tensor = storage.wrap(array, leaf.form.dtype)
        else:
            over = storage.wrap(array).untyped_storage() if memory is None else memory
            tensor = leaf.form.over(over)
        self._storages.setdefault(leaf.output, tensor.untyped_storage())
        if leaf.is_spent:
            with torch.enable_grad():
                tensor, _ = _spent()(tensor, _ANCHOR)
        return tensor


class Results:
    """Makes templates at the end of an observed call, and gathers the outputs that they need."""

    def __init__(self, observer: Observer, connected: set[int]):
        """Take the ids of ``connected`` tensors, which get their history when they are made."""
        self._observer, self._connected = observer, connected
        self.new: list[Any] = []  # storages that the call has made, each an output of the program
        self._outputs: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._known = {id(one.tensor): one.tensor for one in observer.storages.met}
        gradients = observer.optimizers.gradients.values()
        self._found = {id(g.before): g.tensor for g in gradients if g.tensor.grad is g.before}

    def of(self, value: Any) -> Template:
        leaves, form = trees.flatten(value)
        return Template(form, list(map(self._leaf, leaves)))

    def _leaf(self, value: Any) -> Any:
        owner = self._observer.owner(value)
        if type(owner) is int and not isinstance(value, _PLAIN):
            return Older(owner)
        if not isinstance(value, torch.Tensor):
            if not isinstance(value, _PLAIN) and not callable(value):
                self._observer.refuse(f"it returns a {type(value).__name__}")
            return Same(value)
        if not storage.is_jax(value):
            if self._observer.host.is_made(value):
                self._observer.refuse("it returns a tensor that it makes on the CPU")
            return Same(value)
        if type(value) is not torch.Tensor and id(value) not in self._known:
            self._observer.refuse(f"it returns a new {type(value).__name__}")
        return self._on_device(value)

    def _on_device(self, value: torch.Tensor) -> Any:
        if id(value) in self._found:
            return GradientOf(self._observer.owner(self._found[id(value)]))
        number = self._numbers.setdefault(id(value), len(self._numbers))
        memory: Any = value.untyped_storage()
        place = self._observer.storages.place_of(memory)
        if place is not None and not self._observer.is_older(value):
            if self._wants_gradient(value):
                self._observer.refuse("it returns a view of an older tensor that wants gradients")
            older = self._observer.storages.met[place].tensor
            return Older(self._observer.owner(older), Form.of(value), number)
        if not self._observer.storages.is_made(memory):  # an older tensor
            return Same(value)
        is_spent = self._wants_gradient(value) and id(value) not in self._connected
        if is_spent and (value.grad_fn is None or not autograd_nodes.is_spent(value)):
            self._observer.refuse("it gives out a tensor of which gradients are wanted elsewhere")
        if type(memory.array) is not Node:
            return FixedTensor(Fixed(memory.array), Form.of(value), number)
        at = self._outputs.setdefault(id(memory), len(self.new))
        if at == len(self.new):
            self.new.append(memory)
        form = Form.of(value)
        is_whole = storage.is_whole(value, storage.held_by(value)) and value.numel() > 0
        is_plain = form.is_of_mode() and not (form.conj or form.neg)
        return NewTensor(at, form, is_whole and is_plain, number, is_spent)

    def _wants_gradient(self, value: torch.Tensor) -> bool:
        return value.requires_grad and self._observer.history.is_differentiable


def _alike(was: Any, now: Any) -> bool:
    if type(was) is not type(now):
        return False
    if isinstance(was, Older):
        return was[1:] == now[1:] and (was.form is not None or was.owner == now.owner)
    if isinstance(was, FixedTensor):
        return was[1:] == now[1:] and was.made.is_same(now.made)
    if isinstance(was, GradientOf):
        return was.owner is now.owner
    if not isinstance(was, Same):
        return bool(was == now)
    if was.value is now.value:
        return True
    if isinstance(was.value, float | complex):
        return repr(was.value) == repr(now.value)
    plain = isinstance(was.value, _PLAIN) and type(was.value) is type(now.value)
    return plain and bool(was.value == now.value)


def _shown(leaf: Any) -> str:
    return repr(leaf.value) if isinstance(leaf, Same) else "a tensor of another form or values"


class LeftBehind(NamedTuple):
    """The effects of a call: results of the graph by their numbers, arguments by their places."""

    result: Template  # what the function returned
    written: list[tuple[int, int]]  # places of storages met that hold something else: a result
    new: list[int]  # results that get new storages, in the order of the templates' outputs
    memories: list[Any]  # weak references to those of this call
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
    for tensor, before, node in observer.outlines.values():
        # a backward pass from the tensor would go through the call
        is_same = tensor.grad_fn is None or tensor.grad_fn is node
        has_history = not (is_same or autograd_nodes.is_spent(tensor))
        if has_history or outline(tensor) != before:
            observer.refuse(
                f"a tensor that is older than the call ({errors.describe(tensor)}) gets another "
                "memory, form, history, requires_grad or hook: return a new tensor",
                is_of_first=True,
            )
    return LeftBehind(
        template, written, [_number(observer, memory) for memory in results.new],
        list(map(weakref.ref, results.new)),
        gradients, without, moving,
        _raised(observer, moving), connected, positions,
    )  # fmt: skip


def _number(observer: Observer, memory: Any) -> int:
    """Return which result of the graph a storage holds."""
    node = memory.array
    if type(node) is Node and node.recording is ACTIVE.recorder.recording:
        return node.index
    if type(node) is Node:  # which another thread is about to run
        observer.disturb()
    elif not observer.is_disturbed():
        observer.refuse("a tensor was written past the recording")
    return 0


def _connected(observer: Observer, leaves: list[Any]) -> list[int]:
    """Return which leaves have gradients that the function leaves to its caller, each once."""
    if observer.went_back:
        return []
    found = {
        id(leaf): at
        for at, leaf in enumerate(leaves)
        if storage.is_jax_tensor(leaf)
        and leaf.grad_fn is not None
        and observer.storages.is_made(leaf.untyped_storage())
        and not autograd_nodes.is_spent(leaf)
    }
    return list(found.values())


def _gradients(observer: Observer, results: Results) -> tuple[list, list, list]:
    """Return the gradients that the call replaced, who must have none, and those that move."""
    changed, without, moving = [], [], []
    for known in observer.optimizers.gradients.values():
        tensor, before, after = known.tensor, known.before, known.tensor.grad
        owner = observer.owner(tensor)
        known.place = owner if type(owner) is int else None
        if was_read := observer.optimizers.was_read(before):
            moving.append((owner, before))
        elif before is None and not known.reset and (known.is_asked or observer.went_back):
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
