"""What a traced function returned or left behind, and how each call makes it anew.

A template is a pytree whose leaves say where a value comes from: out of the program, from the
host's tape, a view of something that was there before, or just the same object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from torch_jax.capture.capture import Input
from torch_jax.capture.given_out import PLAIN, View, marks_of, refuse
from torch_jax.capture.host.cpu_tensors import is_host
from torch_jax.capture.state.places import Place
from torch_jax.core import tracers
from torch_jax.core.numbers import NUMBERS
from torch_jax.core.tracers import NotTraceableError
from torch_jax.memory import storage
from torch_jax.memory.form import Argument, NewTensor, Same
from torch_jax.memory.storage import is_jax

_LEAF = pytree.tree_structure(0)


class OnHost(NamedTuple):
    """A value on the host's tape."""

    slot: int


class Counted(NamedTuple):
    """A number that the function counts up: what stands in its place before the call, plus this."""

    place: Place
    amount: int


class Instance:
    """A new object at every call: its class, and a template of its ``__dict__``."""

    def __init__(self, kind: type):
        self.kind, self.state = kind, Template(None, [])


class Template(NamedTuple):
    """A value by its form and its leaves."""

    form: Any
    leaves: list[Any]

    def all_leaves(self) -> Iterator[Any]:
        """The leaves, and those of the objects among them."""
        seen: list[Instance] = []
        queue = list(self.leaves)
        while queue:
            leaf = queue.pop()
            if isinstance(leaf, View):
                yield leaf
                queue.append(leaf.source)
            elif not isinstance(leaf, Instance):
                yield leaf
            elif not any(leaf is one for one in seen):
                seen.append(leaf)
                queue += leaf.state.leaves

    def build(self, call: Call) -> Any:
        """The value in one call."""
        return pytree.tree_unflatten(self.build_leaves(call), self.form)

    def build_leaves(self, call: Call) -> list[Any]:
        """The leaves of the value in one call."""
        return [call.leaf(leaf) for leaf in self.leaves]


class Call:
    """The values of one call, out of which templates are built."""

    def __init__(self, arguments: list, env: list, storages: Callable[[Input], Any], outputs: list):
        self.arguments, self.env, self.storages, self.outputs = arguments, env, storages, outputs
        self.new_storages: dict[int, Any] = {}  # by output
        self.tensors: dict[int, torch.Tensor] = {}  # new ones, by their number in the templates
        self.objects: dict[int, Any] = {}  # new ones, by the id of their template

    def leaf(self, leaf: Any) -> Any:
        """One leaf of a template."""
        kind = type(leaf)
        if kind is Same:
            return leaf.value
        if kind is NewTensor:
            return self._tensor(leaf)
        if kind is Argument:
            return self.arguments[leaf.place]
        if kind is OnHost:
            return self.env[leaf.slot]
        if kind is Instance:
            return self._object(leaf)
        if kind is Counted:
            return leaf.place.now() + leaf.amount
        if kind is View:
            return self._view(leaf)
        return leaf.form.over(self.storages(leaf.input))

    def _object(self, leaf: Instance) -> Any:
        new = self.objects.get(id(leaf))
        if new is None:
            # entered before its attributes are built, which may hold the object itself
            new = self.objects[id(leaf)] = object.__new__(leaf.kind)
            new.__dict__.update(leaf.state.build(self))
        return new

    def _tensor(self, leaf: NewTensor) -> torch.Tensor:
        tensor = self.tensors.get(leaf.number)
        if tensor is None:
            tensor = leaf.build(self.outputs, self.new_storages)
            if leaf.marks is not PLAIN:
                tensor = leaf.marks.put_on(tensor)
            self.tensors[leaf.number] = tensor
        return tensor

    def _view(self, leaf: View) -> torch.Tensor:
        tensor = self.tensors.get(leaf.number)
        if tensor is None:
            tensor = self.tensors[leaf.number] = leaf.build(self.leaf(leaf.source))
        return tensor


def containers_of(value: Any, left_out: Collection[int]) -> Iterator[Any]:
    """The dicts, lists, tuples and deques in a value, but those with these ids and what is in them.

    ``left_out`` may grow meanwhile.
    """
    queue = [value]
    while queue:
        one = queue.pop()
        if isinstance(one, dict | list | tuple | deque) and id(one) not in left_out:
            yield one
            queue += one.values() if isinstance(one, dict) else one


def refuse_changing_keys(value: Any) -> None:
    """Refuse a dict that has numbers of the trace for keys."""
    if isinstance(value, dict) and any(isinstance(key, NUMBERS) for key in value):
        refuse("a dict with a changing number for a key")


class Templates:
    """Makes templates at the end of a trace, and gathers the storages they need as outputs."""

    def __init__(
        self,
        capture: Any,
        arguments: list[Any],
        known: dict[int, torch.Tensor],
        containers: set[int],
        new_objects: dict[int, Any],
        connected: set[int],
        reads_data: bool,
        young: set[int],
        given: set[int],
    ):
        """Values of the trace are recognized by id.

        ``known`` tensors and ``containers`` were there before the trace and stay what they are;
        ``new_objects`` are made anew by each call. Tensors that are ``connected``, by id, get
        their history when the result is made. ``reads_data``: the code names ``.data``. What is
        ``young`` was made by the trace, by id; ``given`` are containers among the arguments.
        """
        self.new_objects, self._instances = new_objects, dict[int, Instance]()
        self.containers = containers
        self.capture = capture
        self.arguments = {id(a): i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)}
        self._argument_by_id = {id(a): a for a in arguments}
        self.known = known
        self.new_storages: list[Any] = []  # each an output of the program
        self._outputs: dict[int, int] = {}  # where a storage stands among them, by its id
        self.originals: dict[int, torch.Tensor] = {}
        self._tensors: dict[int, int] = {}
        self._first: dict[int, tuple[Any, torch.Tensor]] = {}  # leaf and tensor, by storage
        self._connected, self._reads_data = connected, reads_data
        self._young, self._given = young, given
        self._met: dict[int, Any] = {}  # containers that were seen so far

    def of(self, value: Any) -> Template:
        """The template of a value of the trace."""
        self._refuse_shared(value)
        leaves, form = pytree.tree_flatten(
            value, is_leaf=lambda v: type(v) is torch.Size or id(v) in self.containers
        )
        return Template(form, [self._leaf(leaf) for leaf in leaves])

    def _refuse_shared(self, value: Any) -> None:
        """Refuse containers that a call would make anew though they are of another place too."""
        for one in containers_of(value, self.containers):
            refuse_changing_keys(one)
            if not isinstance(one, tuple):
                if id(one) in self._met or id(one) in self._given:
                    refuse(f"a {type(one).__name__} that stands in another place, too")
                self._met[id(one)] = one

    def counted(self, place: Place, now: int) -> Template:
        """The template of a number that the function counted up."""
        return Template(_LEAF, [Counted(place, now - place.value)])

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, NUMBERS):
            return OnHost(value.slot)
        if id(value) in self.new_objects:
            return self._instance(value)
        if not isinstance(value, torch.Tensor):
            if id(value) in self._young and id(value) not in self.containers:
                refuse(f"a new {type(value).__name__}")
            return Same(value)
        if id(value) in self.arguments:
            return Argument(self.arguments[id(value)])
        if is_host(value):
            return OnHost(self.capture.host.slot_of(value))
        if not is_jax(value) or not tracers.is_traced(storage.memory_of(value)):
            return Same(value)
        return self._device_leaf(value)

    def _instance(self, value: Any) -> Instance:
        known = self._instances.get(id(value))
        if known is None:
            known = self._instances[id(value)] = Instance(type(value))
            known.state = self.of(dict(vars(value)))
        return known

    def _device_leaf(self, value: torch.Tensor) -> Any:
        memory = value.untyped_storage()
        entry = self.capture.input_of(memory)
        if entry is not None:
            return Same(value) if id(value) in self.known else self._view_of_older(value)
        index = self._outputs.setdefault(id(memory), len(self.new_storages))
        if index == len(self.new_storages):
            self.new_storages.append(memory)
        number = self._tensors.setdefault(id(value), len(self._tensors))
        if not value.requires_grad:  # one that does would keep autograd's graph of the trace
            self.originals[number] = value
        first, other = self._first.get(id(memory), (None, value))
        if other is not value:
            return self._view_of_new(first, other, value, number)
        marks = marks_of(value, id(value) in self._connected)
        leaf = NewTensor.of(index, value, number)._replace(marks=PLAIN if marks == PLAIN else marks)
        self._first[id(memory)] = leaf, value
        return leaf

    def _view_of_new(
        self, first: Any, other: torch.Tensor, value: torch.Tensor, number: int
    ) -> Any:
        """A second tensor over new memory."""
        known_view = other._is_view() and not value._is_view()
        if known_view or value._is_view() and value.requires_grad or self._reads_data:
            refuse("several tensors over one memory")
        if value.requires_grad and id(value) not in self._connected:
            refuse("several tensors over one memory of which gradients are wanted")
        return View.of(first, other, value, number)

    def _view_of_older(self, value: torch.Tensor) -> View:
        """A tensor over memory that was there before: a view, or detached."""
        number = self._tensors.setdefault(id(value), len(self._tensors))
        if value.requires_grad or self._reads_data or value.is_inference():
            refuse("memory of an older tensor, of which gradients are wanted or in another way")
        base = value._base if value._is_view() else None
        older: list[tuple[Any, torch.Tensor]]
        older = [(Argument(at), self._argument_by_id[key]) for key, at in self.arguments.items()]
        older += [(Same(tensor), tensor) for tensor in self.known.values()]
        for leaf, tensor in older:
            if tensor.untyped_storage() is not value.untyped_storage():
                continue
            if base is None or tensor is base or tensor._base is base:
                self.originals[number] = value
                return View.of(leaf, tensor, value, number)
        return self._view_of_detached(older, value, number)

    def _view_of_detached(self, older: list, value: torch.Tensor, number: int) -> View:
        """A view of what was detached of an older tensor."""
        for leaf, tensor in older:
            if tensor.untyped_storage() is value.untyped_storage():
                self.originals[number] = value
                return View.of(leaf, tensor, value, number)._replace(is_detached=True)
        raise NotTraceableError(
            "under torch_jax.jit this Python has to run at each call: it gives out a view of an "
            "older tensor that is not known"
        )
