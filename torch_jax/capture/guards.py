"""Conditions for running a program again without the function's Python, and its storages.

State is compared by identity first, in a few passes of C, since nearly always nothing changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from operator import attrgetter, is_, is_not
from typing import Any

import torch

from torch_jax._private import dynamo, pytorch
from torch_jax.capture.arguments import SortedCall
from torch_jax.core import errors, trees
from torch_jax.memory.storage import is_jax_tensor

SHARES = "an argument shares memory with a tensor that the function holds"

_storage_of = torch.Tensor.untyped_storage
_gradient: Callable[[torch.Tensor], Any] = attrgetter("grad")
_hooks_of: Any = attrgetter(*pytorch.HOOKS)

Entry = tuple[dict, Any, Any]  # a dict, a key, and its value


class Guards:
    """The tensors and the state of modules and optimizers that one call relied on."""

    def __init__(self, observer: Any, left: Any):
        given = [leaf for leaf in observer.leaves if isinstance(leaf, torch.Tensor)]
        checked_by_memories = [*given, *(gradient for _, gradient in left.moving)]
        memories = {id(tensor.untyped_storage()) for tensor in checked_by_memories}
        # these must see the same memories in the same form
        self._tensors: list[torch.Tensor] = [
            tensor
            for tensor, *_ in observer.outlines.values()
            if type(observer.owner(tensor)) is not int
            and id(tensor.untyped_storage()) not in memories
        ]
        self._storages = list(map(_storage_of, self._tensors))
        self._offsets = [tensor.storage_offset() for tensor in self._tensors]
        self._hooks = list(map(_hooks_of, self._tensors))
        self._have_forms = dynamo.tensor_guards(self._tensors)
        modules, optimizers = observer.modules.values(), observer.optimizers
        tables = [*pytorch.MODULE_HOOKS, *chain.from_iterable(map(_tables, modules))]
        # these dicts must hold the same values
        entries: list[Entry] = [(vars(m), n, vars(m).get(n)) for m in modules for n in _OWN]
        entries += [(table, *entry) for table in tables for entry in table.items()]
        entries += optimizers.world()
        columns: list[Any] = [list(column) for column in zip(*entries, strict=True)]
        self._dicts, self._keys, self._values = columns or [[], [], []]
        # these must have no ``.grad``
        self._without = [owner for owner in left.without if type(owner) is not int]
        # these must be as long
        self._lists = [*optimizers.lists(), *tables]
        self._lists += filter(None, chain.from_iterable(self._hooks))
        self._lengths = list(map(len, self._lists))
        self.numbers = optimizers.read  # of optimizers, each with its value in the call

    def changed(self) -> str | None:
        """Return what has changed, in words; None where nothing has."""
        if not all(map(is_, map(_storage_of, self._tensors), self._storages)):
            pairs = zip(self._tensors, self._storages, strict=True)
            shown = errors.describe(next(t for t, old in pairs if t.untyped_storage() is not old))
            return f"a {shown} has another memory (.data was set, or .to() called)"
        if not self._have_forms(*self._tensors):
            return "a tensor has another shape, another dtype or another requires_grad"
        if [tensor.storage_offset() for tensor in self._tensors] != self._offsets:
            return "a view stands elsewhere in its memory"
        if list(map(_hooks_of, self._tensors)) != self._hooks:
            return "a tensor has other hooks"
        is_same = all(map(is_, map(dict.get, self._dicts, self._keys), self._values))
        if not is_same and (found := self._other_entry()):
            return found
        if any(map(is_not, map(_gradient, self._without), repeat(None))):
            tensor = next(one for one in self._without if one.grad is not None)
            return f"the .grad of a {errors.describe(tensor)} was None, now it is another"
        if list(map(len, self._lists)) != self._lengths:
            return "an optimizer or a module has other parameters, parts or hooks"
        return None

    def _other_entry(self) -> str | None:
        for of, key, old in zip(self._dicts, self._keys, self._values, strict=True):
            new = of.get(key)
            is_plain = isinstance(old, int | str | tuple | None) and type(old) is type(new)
            if new is not old and not (is_plain and old == new):
                if isinstance(old, dict | list):
                    return "the state or the groups of an optimizer are others, as after loading"
                return f"{_shown(key)} was {_shown(old)}, now it is {_shown(new)}"
        return None


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {errors.describe(value)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_OWN = ("training", "forward")  # the second where a module's own is replaced
_PARTS = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _tables(module: torch.nn.Module) -> list[dict]:
    """Return the dicts of a module's parts and hooks."""
    return [table for table in map(vars(module).get, _PARTS + _HOOKS) if table is not None]


class Memories:
    """The storages that a call reads or writes, in the order in which the observed one met them."""

    def __init__(self, observer: Any, left: Any):
        met = [one.storage for one in observer.storages.met]
        tensors = [leaf for leaf in observer.leaves if isinstance(leaf, torch.Tensor)]
        # of each memory that is an argument's: the last tensor over it among the arguments
        leaves = {
            id(leaf.untyped_storage()): at for at, leaf in enumerate(tensors) if is_jax_tensor(leaf)
        }
        self._given = [(at, leaves[id(one)]) for at, one in enumerate(met) if id(one) in leaves]
        self._first = [
            (leaf, weakref.ref(tensors[leaf].untyped_storage())) for _, leaf in self._given
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

    def of_call(self, call: SortedCall) -> list[Any]:
        if not (self._given or self._owners):
            return self._fixed
        found = self._fixed.copy()
        for at, leaf in self._given:
            found[at] = call.storages[leaf]
        for at, gradient in zip(self._places, self._read(call.leaves), strict=True):
            found[at] = gradient.untyped_storage()
        return found

    def _read(self, leaves: Sequence[Any]) -> list[Any]:
        return [trees.owned(owner, leaves).grad for owner in self._owners]

    def changed(self, call: SortedCall) -> str | None:
        """Return why a call must not run on its arguments; None where it may."""
        leaves = call.leaves
        if not self._held.isdisjoint(map(id, call.storages)):
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

    def meets_another(self, call: SortedCall) -> bool:
        """Return whether an argument has a new memory: the function may hold the first one, too."""
        if others := [one for one in self._first if call.storages[one[0]] is not one[1]()]:
            self._first = [one for one in self._first if one not in others]
        return bool(others)

    def is_fixed(self, places: Sequence[int], tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in one of the fixed storages at these places."""
        memory = tensor.untyped_storage()
        return any(self._fixed[at] is memory for at in places)

    def names(self) -> list[Any]:
        """Return a name for each storage: an argument's place, a gradient's owner, or its id."""
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
