"""A compiled trace called again: what it takes from where, and what becomes of its results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import increment_version
from torch.utils import _pytree as pytree

from torch_jax.capture.capture import Input
from torch_jax.capture.given_out import PLAIN, View
from torch_jax.capture.gradients import Gradients
from torch_jax.capture.host.tape import Changed, Tape
from torch_jax.capture.outer_backward import Backward, Connected
from torch_jax.capture.part_arguments import GivenOut
from torch_jax.capture.randomness import begin_draws
from torch_jax.capture.record import Record
from torch_jax.capture.state.guards import Guards
from torch_jax.capture.templates import Call
from torch_jax.compiler.program import Program, copy_shared
from torch_jax.core import errors, policies
from torch_jax.core.collection import no_collection
from torch_jax.core.lent import lent
from torch_jax.core.numbers import is_or_holds_number
from torch_jax.core.tracers import NotTraceableError, TracedElsewhere, is_traced_elsewhere
from torch_jax.core.x64 import x64
from torch_jax.memory import lending, sharding
from torch_jax.memory.form import Argument, NewTensor
from torch_jax.memory.storage import give_back, is_jax, memory_in, replace
from torch_jax.memory.transfer import on_host

_alias = torch.ops.aten.alias.default
_NO_NUMBERS = np.zeros(0)
_MANY = 50  # new arrays, of which a few calls would start a collection


@dataclass(frozen=True)
class Layout:
    """Where a call finds the program's inputs, and which of them it writes; the same at each call.

    The program takes a vector of numbers, then *memories* (captured ones, then those of arguments),
    arrays of the host, and key words.

    Attributes:
      numbers: inputs that are numbers, by index.
      order: all other inputs, by index, as the program takes them.
      number_slots: where the numbers stand on the tape.
      host_slots: where the arrays of the host stand on the tape.
      holders: for each captured memory, which of the guards' tensors holds it.
      leaf_of: for each memory of an argument, which leaf holds it.
      position: of each memory, by its input.
      written: positions of the memories that the program's first outputs belong to.
      raised: which of the guards' tensors count the writes of a call, and how many each.
      leaves_raised: the same of arguments.
      also_held: arguments that share memory with one of the guards' tensors, by leaf; which one.
      roots: slots of CPU tensors, and which of the guards' tensors stands there.
    """

    numbers: list[int]
    order: list[int]
    number_slots: list[int]
    host_slots: list[int]
    holders: list[int]
    leaf_of: list[int]
    position: dict[Input, int]
    written: list[int]
    raised: list[tuple[int, int]]
    leaves_raised: list[tuple[int, int]]
    also_held: dict[int, int]
    roots: list[tuple[int, int]]

    @classmethod
    def of(cls, record: Record) -> Layout:
        """Sort the inputs by where each call finds them."""
        inputs, guards = record.inputs, record.guards
        leaf_of = {
            id(leaf.untyped_storage()): i
            for i, leaf in enumerate(record.leaves)
            if isinstance(leaf, torch.Tensor) and is_jax(leaf)
        }
        holder_of = {id(memory): k for k, memory in enumerate(guards.storages)}
        memories = [entry for entry in inputs if entry.kind == "storage"]
        given = [entry for entry in memories if id(entry.source) in leaf_of]
        captured = [entry for entry in memories if id(entry.source) not in leaf_of]
        for entry in captured:
            if id(entry.source) not in holder_of:
                raise _unknown(entry)
        by_kind = {
            kind: [entry for entry in inputs if entry.kind == kind]
            for kind in ("number", "host", "words")
        }
        order = [*captured, *given, *by_kind["host"], *by_kind["words"]]
        position = {entry: at for at, entry in enumerate((*captured, *given))}
        tensors = {id(tensor): k for k, tensor in enumerate(guards.tensors)}
        return cls(
            numbers=[entry.index for entry in by_kind["number"]],
            order=[entry.index for entry in order],
            number_slots=[entry.source for entry in by_kind["number"]],
            host_slots=[entry.source for entry in by_kind["host"]],
            holders=[holder_of[id(entry.source)] for entry in captured],
            leaf_of=[leaf_of[id(entry.source)] for entry in given],
            position=position,
            written=[position[entry] for entry in record.written],
            raised=_raised(guards.tensors, record),
            leaves_raised=_raised(record.leaves, record),
            also_held={i: holder_of[key] for key, i in leaf_of.items() if key in holder_of},
            roots=[(slot, tensors[id(t)]) for t, slot in record.roots if id(t) in tensors],
        )

    def values_of(self, indices: list[int]) -> list[int]:
        """Where the values of inputs stand in a call: among its arrays, ``~`` among its numbers."""
        at = {index: at for at, index in enumerate(self.order)}
        at |= {index: ~spot for spot, index in enumerate(self.numbers)}
        return [at[index] for index in indices]


class Binding:
    """The captured memories as the guards' tensors hold them now; bound anew when others do.

    Attributes:
      storages: the captured memories, in order.
      held: which of the guards' tensors holds a memory, by its id.
      counted: captured tensors that a call writes, as often as their versions count that.
      counted_leaves: which arguments a call writes, likewise.
    """

    def __init__(self, layout: Layout, guards: Guards, tape: Tape):
        self.layout, self.guards, self.tape = layout, guards, tape
        self.bind()

    def bind(self) -> None:
        """Take the memories, and the CPU tensors of the tape, from the guards' tensors."""
        layout, guards = self.layout, self.guards
        for slot, k in layout.roots:
            self.tape.env[slot] = guards.tensors[k]
        self.storages = [guards.storages[k] for k in layout.holders]
        self.held = {id(memory): k for k, memory in enumerate(guards.storages)}
        self.counted = [guards.tensors[k] for k, times in layout.raised for _ in range(times)]
        self.counted_leaves = [i for i, times in layout.leaves_raised for _ in range(times)]

    def written(self) -> set[int]:
        """The ids of the captured memories that a call writes."""
        captured = len(self.storages)
        return {id(self.storages[at]) for at in self.layout.written if at < captured}


class Replay:
    """A compiled trace, to be called with the leaves of other arguments.

    Attributes:
      program: the executable.
      verified: how many calls were compared with eager ones.
      evidence: what its Python was recorded to do, None where that is not known.
      donates: whether written memories may be given to the program.
      steps: whether it steps optimizers.
      reads_host: whether the program is given values that the host has.
      once_because: why the trace cannot stand for later calls, None where it can.
      unproven: why later calls have to run Python, None where this is not known.
    """

    def __init__(self, record: Record, closed: Any, donate: bool, backward: Backward | None = None):
        """Arrange the inputs, and compile the ``closed`` jaxpr."""
        self.tape, self.fills, self.guards = record.tape, record.fills, record.guards
        self.result, self.effects = record.result, record.effects
        templates = [self.result, *(template for _, template in self.effects)]
        leaves = [leaf for _, template in self.effects for leaf in template.all_leaves()]
        self._moves = any(isinstance(leaf, NewTensor | View | Argument) for leaf in leaves)
        self.gradients = Gradients(record.gradients, templates)
        self.checks, self.backward = record.checks, backward
        self.verified, self.donates = 0, True
        self.evidence: Any = None
        self.steps = record.steps
        self._draws = record.draws
        self._layout = layout = Layout.of(record)
        self.reads_host = bool(layout.host_slots)
        written = {entry.index for entry in record.written}
        if backward is not None:
            written -= set(backward.cut.kept)  # the backward pass needs them as they were
            self._kept = layout.values_of(backward.cut.kept)
            self._sources = _sources(backward.pullback.inputs, record)
            self._saved = _sources(backward.pullback.saved, record)
            backward.pullback.inputs = []  # the tensors of this call, which no later call needs
            backward.pullback.saved = []
            self._views = self._take_views(backward.pullback.positions)
        self.program = Program(
            closed,
            layout.numbers,
            layout.order,
            written if donate else set(),
            *_shardings(record, closed),
            processes=record.processes,
        )
        self._donated = [at - 1 for at in self.program.donated]
        self._replicated = None if record.processes else _replicated(self.program)
        avals = [entry.aval for entry in record.written]
        self._placeholders = [lent(aval.shape, aval.dtype) for aval in avals]
        # as many arrays go as come, but only after these: a collection would find none of them
        many = len(closed.out_avals) > _MANY
        self._calm: Callable[[], Any] = no_collection if many else contextlib.nullcontext
        self._flags = len(layout.written) + len(record.new_storages)
        self._binding = Binding(layout, self.guards, self.tape)
        slots = {leaf.slot for t in templates for leaf in t.all_leaves() if hasattr(leaf, "slot")}
        self.tape.prune(slots | {*layout.number_slots, *layout.host_slots})
        self.unproven = record.unproven
        self.once_because = _stray(record) or record.unproven

    @property
    def captured_count(self) -> int:
        """How many memories of tensors that are no arguments the program takes."""
        return len(self._layout.holders)

    # --- calling ----------------------------------------------------------------------------------

    def first(self, record: Record) -> Any:
        """Run for the call that was traced: Python's part of it has been done."""
        for entry in record.inputs:
            entry.array = None  # a reference that would forbid to donate the array
        words = [draws.first_words() for draws in self._draws]
        outputs, saved = self._launch(record.leaves, self.tape.env, words)
        call = self._call(record.leaves, self.tape.env, outputs)
        give_back(record.new_storages, call.outputs)
        call.new_storages.update(enumerate(record.new_storages))
        call.tensors.update(record.originals)
        for place, template in self.effects:
            if is_or_holds_number(place.now()):  # a number of this trace: a plain one replaces it
                place.put(template.build(call))
        result = self._result(call, saved)
        for entry in record.inputs:  # templates keep the inputs, but need not keep these alive
            entry.source, entry.tracer = None, None
        self._follow()
        self._raise_failed_checks(outputs)
        return result

    def __call__(self, leaves: list[Any], follows: bool = True) -> Any:
        """Run again; raises :class:`Changed` where the trace does not fit any more.

        ``follows`` is whether the call stays: then what it replaced may go at once.
        """
        self.check(leaves)
        env = self.tape.env
        if self.tape.steps or self.fills:
            env = self.tape.play({slot: leaves[i] for slot, i in self.fills.items()})
        words = begin_draws(self._draws)
        try:
            self.gradients.clear()
            with self._calm():
                outputs, saved = self._launch(leaves, env, words)
            self._raise_versions(leaves)
            call = self._call(leaves, env, outputs)
            for place, template in self.effects:
                place.put(template.build(call))
            self.gradients.fill(call)
        except BaseException:
            self.gradients.drop()
            raise
        result = self._result(call, saved)
        if follows:
            self._follow()
        self._raise_failed_checks(outputs)
        return result

    def _follow(self) -> None:
        """Where the call put other tensors somewhere, hold these, and let go of those before."""
        if self._moves and not self.guards.hold():
            with contextlib.suppress(Changed):
                if self.guards.recheck():
                    self._binding.bind()

    def _result(self, call: Call, saved: list[Any]) -> Any:
        """What the function returns, connected with what gradients flow to."""
        if self.backward is None:
            return self.result.build(call)
        leaves = self.result.build_leaves(call)
        positions = self.backward.pullback.positions
        inputs, tensors = (
            [
                call.arguments[at] if kind == "argument" else self.guards.tensors[at]
                for kind, at in sources
            ]
            for sources in (self._sources, self._saved)
        )
        outputs = [leaves[i] for i in positions]
        connected = Connected.apply(self.backward, saved, outputs, tensors, *inputs)
        for i, tensor in zip(positions, connected, strict=True):
            leaves[i] = _alias(tensor) if i in self._views else tensor
        return pytree.tree_unflatten(leaves, self.result.form)

    def _take_views(self, positions: list[int]) -> set[int]:
        """Which results are views: these become so after they got their history."""
        leaves, found = self.result.leaves, set()
        for at in positions:
            marks = getattr(leaves[at], "marks", PLAIN)
            if marks.is_view:
                found.add(at)
                leaves[at] = leaves[at]._replace(marks=marks._replace(is_view=False))
        return found

    def generators(self) -> list[Any]:
        """The generators that a call draws from."""
        return [draws.generator for draws in self._draws]

    def host_tensors(self) -> list[torch.Tensor]:
        """The CPU tensors that a call may change."""
        return [t for t in self.guards.tensors if not is_jax(t)]

    def storages(self, leaves: Sequence[Any]) -> list[Any]:
        """Those that a call reads: the captured ones, then those of its arguments."""
        given = [leaves[i].untyped_storage() for i in self._layout.leaf_of]
        return self._binding.storages + given

    def check(self, leaves: list[Any]) -> None:
        """Raise :class:`Changed` where the guards do not hold, nor others may stand in."""
        if not self.guards.hold() and self.guards.recheck():
            self._binding.bind()
        held, also_held = self._binding.held, self._layout.also_held
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                if held.get(id(leaf.untyped_storage())) != also_held.get(index):
                    raise Changed("an argument shares memory with a tensor the function holds")

    def refuse_written(self, parts: Mapping[int, torch.Tensor]) -> None:
        """Raise :class:`GivenOut` where a call would write what an argument is a part of."""
        written = self._binding.written()
        if any(id(part.untyped_storage()) in written for part in parts.values()):
            raise GivenOut

    def _launch(self, leaves: list[Any], env: list[Any], words: list[Any]) -> tuple[list, list]:
        """Run the executable, and put back what it wrote.

        Returns its outputs, and what the backward pass needs.
        """
        layout = self._layout
        storages = self.storages(leaves)
        numbers: Any = _NO_NUMBERS
        if layout.number_slots:
            numbers = np.array([env[slot] for slot in layout.number_slots], np.float64)
            if self._replicated is not None:
                numbers = self._replicated(numbers)
        others = [env[slot] for slot in layout.host_slots] + words
        while True:
            try:
                arrays: list[Any] = []
                outputs = self._run(numbers, arrays, others, storages)
                break
            except TracedElsewhere:  # another thread has lent a memory, or written one just now
                for memory in storages:
                    memory_in(memory)
        if self.backward is None:
            return outputs, []
        kept = [arrays[at] if at >= 0 else numbers[~at] for at in self._kept]
        return outputs, kept + outputs[len(outputs) - self.backward.cut.residuals :]

    def _raise_versions(self, leaves: list[Any]) -> None:
        """Count the writes as operators do; the traced call's own have counted them.

        A backward pass that has saved one of these tensors then raises.
        """
        binding = self._binding
        if binding.counted:
            increment_version(binding.counted)
        if binding.counted_leaves:
            increment_version([leaves[i] for i in binding.counted_leaves])

    def _run(self, numbers: Any, arrays: list[Any], others: list[Any], storages: list) -> list[Any]:
        """Run the executable over the memories of ``storages``; ``arrays`` then holds these."""
        written = self._layout.written

        def arguments() -> tuple:
            copy_shared(arrays, self._donated, self.donates)
            arrays.extend(others)
            return numbers, *arrays

        try:
            with x64():  # the program was compiled for 64-bit types; JAX checks that at the call
                return lending.run(
                    self.program.caller,
                    arguments,
                    arrays,
                    [storages[at] for at in written],
                    written,
                    self._placeholders,
                    read=storages,
                )
        except (TypeError, ValueError) as error:
            if is_traced_elsewhere(arrays):
                raise TracedElsewhere from error
            if errors.is_deleted(error):
                raise errors.translate(error, "in a function under torch_jax.jit") from error
            raise Changed(f"the memory behind a tensor has another form now: {error}") from error
        except RuntimeError as error:
            raise errors.translate(error, "in a function under torch_jax.jit") from error

    def _call(self, leaves: list[Any], env: list[Any], outputs: list[Any]) -> Call:
        layout, storages = self._layout, self._binding.storages

        def storage_of(entry: Input) -> Any:
            at = layout.position[entry]
            if at < len(storages):
                return storages[at]
            return leaves[layout.leaf_of[at - len(storages)]].untyped_storage()

        return Call(leaves, env, storage_of, outputs[len(layout.written) :])

    def _raise_failed_checks(self, outputs: list[Any]) -> None:
        """Raise what an operator would have raised, had it been able to look."""
        if self.checks and policies.checks_indices():
            for ok, (message, kind) in zip(on_host(outputs[self._flags]), self.checks, strict=True):
                if not ok:
                    raise kind(f"{message} (in a function under torch_jax.jit)")


def _replicated(program: Program) -> sharding.Replicated | None:
    """What brings the numbers of a program to its devices, where these are several."""
    placement = program.call.input_shardings[0][0] if program.numbers else None
    many = placement is not None and len(placement.device_set) > 1
    return sharding.Replicated(placement) if many else None


def _raised(tensors: list[Any], record: Record) -> list[tuple[int, int]]:
    """Which of the tensors count writes, one for each storage, and how many it counts."""
    found: dict[int, tuple[int, int]] = {}
    for at, tensor in enumerate(tensors):
        times = record.raised.get(id(tensor), 0)
        if times and is_jax(tensor):
            key = id(tensor.untyped_storage())
            if times > found.get(key, (0, 0))[1]:
                found[key] = at, times
    return list(found.values())


def _shardings(record: Record, closed: Any) -> tuple[dict[int, Any], list[Any]]:
    """The shardings of inputs that lie on a mesh, by index, and those of the first outputs.

    What is written keeps its sharding; what is new has that of the tensor that it was made like.
    """
    if not sharding.Use.begun:
        return {}, []
    found = {entry.index: sharding.sharding_of(entry.array) for entry in record.inputs}
    shardings = {index: one for index, one in found.items() if one is not None}
    sharding.refuse_two(list(shardings.values()))
    for entry in record.inputs:
        if shardings and sharding.is_bound(entry.array):
            copy = sharding.copied(entry.array, next(iter(shardings.values())).mesh)
            replace(entry.source, copy)
            shardings[entry.index] = copy.sharding
    outputs = [shardings.get(entry.index) for entry in record.written]
    outputs += [sharding.wanted_of(memory) for memory in record.new_storages]
    avals = closed.out_avals[: len(outputs)]
    return shardings, [
        one if one is not None and sharding.fits(one, aval.shape) else None
        for one, aval in zip(outputs, avals, strict=True)
    ]


def _sources(tensors: list[torch.Tensor], record: Record) -> list[tuple[str, int]]:
    """Where each call finds these tensors: among its arguments, or the guards'."""
    given = {id(leaf): i for i, leaf in enumerate(record.leaves)}
    held = {id(tensor): k for k, tensor in enumerate(record.guards.tensors)}
    sources = []
    for tensor in tensors:
        if id(tensor) in given:
            sources.append(("argument", given[id(tensor)]))
        elif id(tensor) in held:
            sources.append(("held", held[id(tensor)]))
        else:
            raise _unknown(record.inputs[0])
    return sources


def _stray(record: Record) -> str | None:
    """Why the trace cannot stand for later calls, None where it can."""
    if not record.strays:
        return None
    shown = ", ".join(f"{s.array.dtype}{list(s.array.shape)}" for s in record.strays[:3])
    return (
        f"{len(record.strays)} new tensors ({shown}) are kept in a place that is not watched; "
        "return them instead"
    )


def _unknown(entry: Input) -> NotTraceableError:
    shape = ",".join(map(str, entry.aval.shape))
    return NotTraceableError(
        f"a {entry.aval.dtype}[{shape}] tensor was read ({entry.line}) that is neither an argument "
        "nor found in the globals, closures and attributes that the function names, so that "
        "torch_jax.jit could not tell when it is another one. Pass it as an argument."
    )
