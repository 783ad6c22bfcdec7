"""A call without Python: the program of an observed call, run for other arguments."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from torch_jax import config
from torch_jax.capture.cpu_tensors import OfHost
from torch_jax.capture.found_gradients import FoundGradients
from torch_jax.capture.gradients import Gradients
from torch_jax.capture.guards import Guards
from torch_jax.capture.left_behind import LeftBehind
from torch_jax.capture.numbers_of_calls import Numbers
from torch_jax.capture.observer import Fixed, Graph, Observer, OfStorage
from torch_jax.capture.results import Call
from torch_jax.capture.tape import Changed
from torch_jax.compiler.donation import copy_shared
from torch_jax.core import errors, policies, signals
from torch_jax.core.collection import no_collection
from torch_jax.core.lent import lent
from torch_jax.core.tracers import TracedElsewhere, is_traced_elsewhere
from torch_jax.core.x64 import x64
from torch_jax.memory import lending, sharding
from torch_jax.memory.storage import is_jax_tensor, memory_in
from torch_jax.memory.transfer import on_host

SHARES = "an argument shares memory with a tensor that the function holds"
_MANY = 50  # new arrays, of which a few calls would start a collection


class Replay:
    """A program, to be called with the leaves of other arguments.

    Attributes:
      graph: that the call has recorded.
      left: what the call left behind.
      captured: how many tensors that are no arguments it reads.
      audits: when a call is recorded all the same, and compared.
      read: the numbers of optimizers that steps have read before any scheduler moved on.
    """

    def __init__(self, observer: Observer, left: LeftBehind, backward: Any = None):
        self.graph, self.left, self.backward = observer.graphs[0], left, backward
        self.audits, self.read = Due(), observer.optimizers.read
        self._tape, self._generators = observer.tape, observer.draws.end()
        self._numbers = Numbers(observer, self.graph)
        self._tape.prune({slot for _, slot in self._numbers.slots})
        self._program = self.graph.program
        self._checks = [(message, kind) for _, message, kind in observer.checks]
        self._arrange(observer, self.graph)
        self.gradients = Gradients(left.gradients, [left.result])
        self.guards = Guards(*left.guarded(observer))
        many = len(self._program.outputs) > _MANY
        self._calm: Callable[[], Any] = no_collection if many else contextlib.nullcontext

    def _arrange(self, observer: Observer, graph: Graph) -> None:
        """Find out where each call takes the program's arrays from, and puts its results."""
        leaves = {
            id(leaf.untyped_storage()): at
            for at, leaf in enumerate(observer.leaves)
            if is_jax_tensor(leaf)
        }
        self._storages: list[Any] = [one.storage for one in observer.met]
        self._given = [
            (at, leaves[id(s)]) for at, s in enumerate(self._storages) if id(s) in leaves
        ]
        self._first = [
            (leaf, weakref.ref(observer.leaves[leaf].untyped_storage())) for _, leaf in self._given
        ]
        self._held = {id(s) for s in self._storages} - leaves.keys()
        self._found = FoundGradients(self.left.moving, observer.place_of)
        self._bare = [owner for owner, _ in self.left.held if type(owner) is int]
        for at, _ in self._given:
            self._storages[at] = None  # later calls have others
        self.captured = len(self._storages) - len(self._given)
        self._others: list[Any] = []
        self._order: list[int] = []
        for source in graph.sources:
            if isinstance(source, OfStorage):
                self._order.append(source.at)
            else:
                self._order.append(~len(self._others))
                self._others.append(source)
        outputs = {node: at for at, node in enumerate(self._program.outputs)}
        self._written = [at for at, _ in self.left.written]
        self._results = [outputs[node] for _, node in self.left.written]
        self._new = [outputs[node] for node in self.left.new]
        self._flags = [outputs[node] for node in self.left.flags]
        self._residuals = [outputs[node] for node in self.left.residuals]
        at_of = [one if one >= 0 else None for one in self._order]
        self._donated = [at for at in (at_of[n] for n in self._program.donated) if at is not None]
        forms = [observer.met[at].storage.array for at in self._written]
        self._placeholders = [lent(array.shape, array.dtype) for array in forms]

    @property
    def donated(self) -> int:
        """Return how many memories the program may write over."""
        return len(self._donated)

    @property
    def numbers(self) -> int:
        """Return how many numbers a call reads."""
        return len(self._numbers.slots)

    def changed(self, leaves: Sequence[Any]) -> str | None:
        """Return why the program does not stand for a call any more; None where it does."""
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf.untyped_storage()) in self._held:
                return SHARES
        if any(leaves[at].grad is not None for at in self._bare):
            return "an argument has a gradient, where it had none"
        return self.guards.changed() or self._found.changed(leaves)

    def is_due(self, leaves: Sequence[Any]) -> bool:
        """Return whether an audit is due.

        It is, too, where an argument is the first that has another memory than at the observed
        call: the function may hold that one as well, and have read or written it by that name.
        """
        others = [one for one in self._first if leaves[one[0]].untyped_storage() is not one[1]()]
        if others:
            self._first = [one for one in self._first if one not in others]
        return self.audits.is_due() or (bool(others) and self.audits.is_on())

    def writes(self, tensor: torch.Tensor) -> bool:
        """Return whether a call writes into the memory of a tensor that is no argument."""
        memory = tensor.untyped_storage()
        return any(self._storages[at] is memory for at in self._written)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Run; raises :class:`Changed` where a number is not as it was."""
        env = self._tape.play() if self._tape.steps else self._tape.env
        self.drawn_from = drawn_from = [one.move_on() for one in self._generators]
        self.gradients.clear(leaves)
        try:
            with self._calm():
                outputs = self._launch(leaves, *self._numbers.of_call(env, drawn_from))
            for tensor in self.left.counted(leaves):
                increment_version(tensor)
            call = Call(leaves, [outputs[at] for at in self._new])
            self.gradients.fill(call)
        except BaseException:
            self.gradients.drop()
            raise
        self._raise_failed_checks(outputs)
        if self.backward is None:
            return self.left.result.build(call)
        return self.backward.connect(self, call, leaves, [outputs[at] for at in self._residuals])

    def storages(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the storages that a call reads or writes, in the order in which they were met."""
        if not (self._given or self._found.places):
            return self._storages
        found = self._storages.copy()
        for at, leaf in self._given:
            found[at] = leaves[leaf].untyped_storage()
        self._found.put_into(found, leaves)
        return found

    def _launch(self, leaves: Sequence[Any], floats: Any, integers: Any) -> list[Any]:
        """Run the program, and put back what it wrote; returns its outputs."""
        storages = self.storages(leaves)
        others = [_read(source, leaves) for source in self._others]
        while True:
            try:
                return self._run(storages, others, floats, integers)
            except TracedElsewhere:  # another thread has lent a memory, or it is only recorded
                for memory in storages:
                    memory_in(memory)

    def _run(self, storages: list, others: list, floats: Any, integers: Any) -> list[Any]:
        arrays: list[Any] = []

        def arguments() -> tuple:
            copy_shared(arrays, self._donated)
            given = [arrays[at] if at >= 0 else others[~at] for at in self._order]
            return floats, integers, given

        try:
            with x64():
                return signals.undisturbed(
                    lending.run,
                    self._sharded if sharding.Use.begun else self._program,
                    arguments,
                    arrays,
                    [storages[at] for at in self._written],
                    self._written,
                    self._placeholders,
                    self._results,
                    storages,
                )
        except (TypeError, ValueError) as error:
            if is_traced_elsewhere(arrays):
                raise TracedElsewhere from error
            if errors.is_deleted(error):
                raise errors.translate(error, "in a function under torch_jax.jit") from error
            raise Changed(f"the memory behind a tensor has another form now: {error}") from error
        except RuntimeError as error:
            raise errors.translate(error, "in a function under torch_jax.jit") from error

    def _sharded(self, floats: Any, integers: Any, arrays: list[Any]) -> list[Any]:
        """Run over memories that may lie on a mesh; what is written stays where it lies."""
        placed = sharding.on_one_mesh(arrays) or arrays
        at_of = {at: n for n, at in enumerate(self._order) if at >= 0}
        written = [
            (arrays[at_of[at]], result)
            for at, result in zip(self._written, self._results, strict=True)
            if at in at_of
        ]
        wanted: list[Any] = [None] * len(self._program.outputs)
        for old, result in written:
            wanted[result] = sharding.sharding_of(old)
        outputs = self._program(floats, integers, placed, tuple(wanted))
        for old, result in written:
            (outputs[result],) = sharding.kept([old], [outputs[result]])
        return outputs

    def _raise_failed_checks(self, outputs: list[Any]) -> None:
        """Raise what an operator would have raised, had it been able to look."""
        if self._flags and policies.checks_indices():
            for at, (message, kind) in zip(self._flags, self._checks, strict=True):
                if not on_host(outputs[at]):
                    raise kind(f"{message} (in a function under torch_jax.jit)")

    def known(self) -> list[Any]:
        """Return what tells the storages that it meets from others, in that order.

        An argument's is told by its place, a gradient's by the owner, all others by their id.
        """
        found: list[Any] = [id(one) for one in self._storages]
        for at, leaf in self._given:
            found[at] = "argument", leaf
        for at, owner in self._found.owners():
            found[at] = "gradient", owner
        return found


class Due:
    """When an audit is due: at the 2nd, 4th, 8th … call, and then after so many."""

    def __init__(self) -> None:
        self._calls, self._due = 1, 2

    def is_first(self) -> bool:
        """Return whether the audit that is due now is that of the second call."""
        return self._calls == 2

    @staticmethod
    def is_on() -> bool:
        """Return whether there are audits at all."""
        return bool(config.get("jit_check_every"))

    def is_due(self) -> bool:
        """Return whether the next call is to be recorded; asked once for each."""
        every = config.get("jit_check_every")
        if not every:
            return False
        self._calls += 1
        if self._calls < self._due:
            return False
        self._due = min(2 * self._due, self._due + every)
        return True


def _read(source: Any, leaves: Sequence[Any]) -> Any:
    if isinstance(source, OfHost):
        return source.read(leaves)
    assert isinstance(source, Fixed)
    return source.array
