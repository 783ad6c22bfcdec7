"""A call without Python: the program of an observed call, run for other arguments."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch.autograd.graph import increment_version

from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.capture.arguments import SortedCall
from torch_jax.capture.draws import Numbers
from torch_jax.capture.guards import Guards, Memories
from torch_jax.capture.keys import Forms
from torch_jax.capture.observer import Observer, raise_failed_checks
from torch_jax.capture.results import Call, LeftBehind, NewTensor, Template
from torch_jax.capture.storages import OfStorage
from torch_jax.capture.tape import Changed
from torch_jax.compiler.donation import copy_shared
from torch_jax.core import errors, tracers
from torch_jax.core.collection import no_collection
from torch_jax.core.node import Lent
from torch_jax.core.tracers import TracedElsewhere
from torch_jax.core.x64 import x64
from torch_jax.memory import lending, sharding
from torch_jax.memory.storage import memory_in


class Replay:
    """A program, to be called with the leaves of other arguments."""

    def __init__(self, forms: Forms, observer: Observer, left: LeftBehind, backward: Any = None):
        self.graph = graph = observer.graphs[0]  # of the observed call
        self.forms, self.left, self.backward = forms, left, backward
        self.calls, self._due = 1, 2  # so far, and at the next audit
        self.is_audited = False  # whether an audit has found no difference, or may find none
        self._tape, self._generators = observer.tape, observer.draws.end()
        self._numbers = Numbers(observer.draws, graph.state, graph.numbers)
        self._tape.prune({slot for _, slot in self._numbers.slots})
        self.memories = Memories(observer, left)
        self.gradients = Gradients(left.gradients, left.result)
        self.guards = Guards(observer, left)
        self._launch = Launch(observer, left)
        self._new = list(map(graph.program.places.__getitem__, left.new))

    def sizes(self) -> dict[str, int]:
        """Return how many tensors, memories and numbers the program takes, for ``explain``."""
        donated, numbers = len(self._launch.donated), len(self._numbers.slots)
        return {"captured": self.memories.captured, "donated": donated, "numbers": numbers}

    def changed(self, call: SortedCall) -> str | None:
        """Return why the program does not serve a call of these forms; None where it does."""
        why = self.memories.changed(call) or self.guards.changed()
        are_parts = functools.partial(self.memories.is_fixed, self._launch.written)
        if why is None and any(map(are_parts, call.parts.values())):
            why = "it writes into what an argument is a part of"
        if why is None and not self._launch.proves(call, self.memories):
            why = "an index is out of range, or may be"
        return why

    def is_due(self, call: SortedCall) -> bool:
        """Return, asked once a call, whether to audit: the 2nd, 4th, 8th …, or for a new memory."""
        every, is_new = config.get("jit_check_every"), self.memories.meets_another(call)
        if not every:
            return False
        self.calls += 1
        if self.calls < self._due:
            return is_new
        self._due = min(2 * self._due, self._due + every)
        return True

    def __call__(self, given: SortedCall) -> Any:
        """Run; raises :class:`Changed` where a number is not as it was."""
        leaves = given.leaves
        env = self._tape.play() if self._tape.steps else self._tape.env
        drawn_from = [one.move_on() for one in self._generators]
        self.gradients.clear(leaves)
        try:
            storages = self.memories.of_call(given)
            outputs = self._launch.run(leaves, storages, self._numbers.of_call(env, drawn_from))
            increment_version(self.left.counted(leaves))
            call = Call(given.originals(), [outputs[at] for at in self._new])
            self.gradients.fill(call)
        except BaseException:
            self.gradients.drop()
            raise
        self._launch.check(outputs)
        return self._built(call, leaves, storages, outputs, drawn_from)

    def _built(self, call: Call, leaves: Any, storages: Any, outputs: Any, drawn_from: Any) -> Any:
        if self.backward is None:
            return self.left.result.build(call)
        return self.backward.connect(call, leaves, storages, outputs, drawn_from)

    def of_observed(self, given: SortedCall, observer: Observer, result: list[Any]) -> Any:
        """Return what the observed call returns: its ``result`` as a later call would make it.

        The call's own result and gradients are let go of. A tensor that is still there is kept by
        something else, as an attribute or a list, which would keep that of the observed call.
        """
        outputs, leaves, made = observer.outputs, given.leaves, observer.storages.computed
        storages = [one.storage for one in observer.storages.met]
        result.clear()
        self.gradients.drop(of_all=True)
        for generation in range(3):  # reference cycles may hold some; the youngest first
            if made():
                gc.collect(generation)
        for stray in made():
            observer.refuse(
                f"a new tensor ({tracers.shown(stray.array)}) is kept somewhere: return it, or "
                "write into one",
                is_of_first=True,
            )
        kept = {at: memory for at, one in enumerate(self.left.memories) if (memory := one())}
        call = Call(given.originals(), [outputs[at] for at in self._new], kept)
        self.gradients.fill(call)
        drawn_from = [one.begin for one in self._generators]
        return self._built(call, leaves, storages, outputs, drawn_from)


class Launch:
    """The program, and the memory or value that each of its arrays is."""

    def __init__(self, observer: Observer, left: LeftBehind):
        graph, storages = observer.graphs[0], observer.storages
        self._program, self._where = graph.program, observer.history.where
        places = graph.program.places
        self._checks: list[Any] = [(places[flag.index], *error) for flag, *error in observer.checks]
        self._proved = observer.proved
        self._others = [one for one in graph.sources if not isinstance(one, OfStorage)]
        others = iter(range(len(self._others)))
        # of each array that the program is given: the place of its storage, ``~`` of the others
        self._order = [s.at if isinstance(s, OfStorage) else ~next(others) for s in graph.sources]
        self.donated = [self._order[at] for at in self._program.donated if self._order[at] >= 0]
        self.written = [at for at, _ in left.written]  # of the memories
        gone = {storages.place_of(one.untyped_storage()) for one in observer.let_go}
        kept = [at for at in gone if at is not None and at not in self.written]
        lent = self.written + kept  # the latter hold afterwards what they held before
        results = [places[node] for _, node in left.written]
        results += [len(places) + at for at in kept]
        arrays = [storages.met[at].storage.array for at in lent]
        self._lending = lent, [Lent(array.shape, array.dtype) for array in arrays], results

    def proves(self, call: Any, memories: Any) -> bool:
        """Return whether the checks that the program leaves out hold for the arrays of a call."""
        storages = memories.of_call(call) if self._proved else []

        def array(at: int) -> Any:
            at = self._order[at]
            return memory_in(storages[at]) if at >= 0 else self._others[~at].read(call.leaves)

        return all(one.holds({at: array(at) for at in one.given}, n) for one, n in self._proved)

    def run(self, leaves: Sequence[Any], storages: list, numbers: tuple[Any, Any]) -> list[Any]:
        """Run the program, and put back what it has written; returns its outputs."""
        others = [source.read(leaves) for source in self._others]
        while True:
            try:
                with no_collection():  # many new arrays would start one
                    return self._run(storages, others, numbers)
            except TracedElsewhere:  # another thread has lent a memory, or has only recorded it
                for memory in storages:
                    memory_in(memory)

    def check(self, outputs: list[Any]) -> None:
        """Raise the error of an operator whose check is false, such as one of indices."""
        if self._checks:
            failed = ((outputs[at], *error) for at, *error in self._checks)
            raise_failed_checks(failed, self._where)

    def _run(self, storages: list, others: list, numbers: tuple[Any, Any]) -> list[Any]:
        arrays: list[Any] = []
        program = self._sharded if sharding.Use.begun else self._program

        def arguments() -> tuple:
            copy_shared(arrays, self.donated)
            return *numbers, [arrays[at] if at >= 0 else others[~at] for at in self._order]

        try:
            return lending.run(program, arguments, arrays, storages, *self._lending)
        except (TypeError, ValueError, AttributeError) as error:  # a placeholder is no array
            if tracers.is_traced_elsewhere(arrays):
                raise TracedElsewhere from error
            if errors.is_deleted(error):
                raise errors.translate(error, f"in {self._where}") from error
            raise Changed(f"the memory behind a tensor has another form now: {error}") from error
        except RuntimeError as error:
            raise errors.translate(error, f"in {self._where}") from error

    def _sharded(self, floats: Any, integers: Any, arrays: list[Any]) -> list[Any]:
        """Run over arrays that may lie on a mesh; what is written keeps its sharding."""
        with x64():
            placed = sharding.on_one_mesh(arrays) or arrays
        at_of = {at: n for n, at in enumerate(self._order)}
        wanted: list[Any] = [None] * len(self._program.outputs)
        for at, result in zip(self.written, self._lending[2], strict=False):
            if at in at_of:
                wanted[result] = sharding.sharding_of(arrays[at_of[at]])
        return self._program(floats, integers, placed, tuple(wanted))


_grad = attrgetter("tensor.grad")


class Gradients:
    """The ``.grad`` of every tensor that gets a new one in a call, or has none after it.

    A step that begins with ``zero_grad`` leaves a new ``.grad`` on each parameter. If only the
    parameter holds that of the last call, its tensor is used again: a new one costs microseconds.
    """

    def __init__(self, changed: list[tuple[Any, Template | None]], result: Template):
        """Take the gradients that the call replaced or reset, each with what is there after it."""
        for one, _ in changed:
            one.before = None  # it would stay in memory as long as the program
        self._of_arguments = [one for one, _ in changed if one.place is not None]
        # these have none after a call
        self._cleared = [one for one, t in changed if t is None and one.reset]
        changed = [(one, t) for one, t in changed if t is not None or not one.reset]
        self._filled = [one for one, _ in changed]
        self._leaves = [None if t is None else t.leaves[0] for _, t in changed]
        self._indices = new = [leaf.output for leaf in self._leaves if type(leaf) is NewTensor]
        elsewhere = {leaf.output for leaf in result.leaves if type(leaf) is NewTensor}
        self._reusable = (
            all(one.reset for one in self._filled)
            and len(new) == len(self._leaves) == len(set(new))
            and elsewhere.isdisjoint(new)
        )
        self._given: list[Any] = []
        self._storages: list[Any] = []
        self._reused = False

    def clear(self, leaves: Sequence[Any]) -> None:
        """Let go of gradients that a call replaces: old and new would take a model's size more."""
        for one in self._of_arguments:  # each call has others
            one.tensor = leaves[one.place]
        for one in self._cleared:
            one.tensor.grad = None
        self._reused = self._reusable and self._alone()
        if self._reused:
            for memory in self._storages:
                memory.array = None
        else:
            self._given = []
            self.drop()

    def drop(self, of_all: bool = False) -> None:
        """Remove the gradients that a call replaces; also after a call that failed."""
        for one in self._filled:
            if one.reset or of_all:
                one.tensor.grad = None

    def fill(self, call: Call) -> None:
        """Give every tensor its gradient, after a call."""
        if self._reused:
            outputs = call.outputs
            for memory, index in zip(self._storages, self._indices, strict=True):
                memory.array = outputs[index]
            return
        given: list[Any] = [None if leaf is None else call.leaf(leaf) for leaf in self._leaves]
        for one, gradient in zip(self._filled, given, strict=True):
            one.tensor.grad = gradient
        if self._reusable:
            self._given = given
            self._storages = [gradient.untyped_storage() for gradient in given]
            self._addresses = [memory._cdata for memory in self._storages]

    def _alone(self) -> bool:
        """Return whether the tensors still have the gradients of the last call, unshared."""
        if not self._given or not all(map(is_, map(_grad, self._filled), self._given)):
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
