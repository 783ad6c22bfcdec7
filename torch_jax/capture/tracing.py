"""Tracing a function: running it once, and noting what it relied on and what became of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import is_not
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils import _pytree as pytree

from torch_jax.capture import border, keys
from torch_jax.capture.arguments import flatten
from torch_jax.capture.capture import Capture
from torch_jax.capture.given_out import View
from torch_jax.capture.outer_backward import Backward, Pullback, inputs_of
from torch_jax.capture.part_arguments import GivenOut
from torch_jax.capture.record import Record
from torch_jax.capture.replay import Replay
from torch_jax.capture.state import changing_numbers
from torch_jax.capture.state.guards import Guards
from torch_jax.capture.state.notes import is_made_here
from torch_jax.capture.state.places import Attribute, Contents, NumberClass, Place
from torch_jax.capture.state.scout import Scouted
from torch_jax.capture.state.watch import Watch
from torch_jax.capture.templates import (
    Argument,
    Counted,
    Same,
    Templates,
    containers_of,
    refuse_changing_keys,
)
from torch_jax.capture.training.optimizers import Optimizers, parameters_of
from torch_jax.compiler import jaxpr, phases
from torch_jax.core import errors
from torch_jax.core.active import TRACING
from torch_jax.core.collection import no_collection
from torch_jax.core.numbers import number_of
from torch_jax.core.tracers import NotTraceableError
from torch_jax.core.x64 import x64


@dataclass(frozen=True)
class TraceRequest:
    """What is to be traced, and how.

    Attributes:
      function: it is called with what ``form`` makes of the ``leaves``.
      numbers: which leaves are inputs of the program although they are Python numbers.
      donate: whether storages that are written give their memory to the result.
      parts: leaves that are copies, and what they are copies of.
      changing: those of ``numbers`` that nobody named: they may have to be constants after all.
      places: where further numbers stand that become inputs, and that nobody named either.
      is_strict: whether Python that is not proven to be the same at each call is an error.
      scouted: what is known to run; None: anything may.
      run: whether the program is run, too; otherwise whatever the trace changed is put back.
    """

    function: Callable[..., Any]
    leaves: list[Any]
    form: Any
    numbers: frozenset[int]
    donate: bool
    parts: Mapping[int, torch.Tensor] = field(default_factory=dict)
    changing: frozenset[int] = frozenset()
    places: Collection[Place] = ()
    is_strict: bool = False
    scouted: Scouted | None = None
    run: bool = True


def trace_and_compile(request: TraceRequest) -> tuple[Replay, Any]:
    """Trace, compile and (unless asked not to) run a function once; what it returned.

    Raises :class:`GivenOut` where copies of parts do not do, and :class:`OtherNumbers` where
    numbers that nobody named may be at fault. Whatever goes wrong, tensors and Python's state are
    as before.
    """
    tracing, leaves = Tracing(request), request.leaves
    with changing_numbers.lifted(tracing.capture, request.places) as lifted:
        tracing.watch.notes.lifted = {(id(place.owner), place.key) for place, _ in lifted}
        fills = tracing.fills.items()
        unnamed: list[tuple] = [
            (i, type(leaves[i]), at) for at, i in fills if i in request.changing
        ]
        unnamed += [(place, type(place.now().value), at) for place, at in lifted]
        try:
            record, replay = _compiled(tracing, request.donate)
            if unnamed:
                _refuse_constants(tracing, unnamed)
        except BaseException as error:
            tracing.roll_back()
            fine = not isinstance(error, Exception) or isinstance(error, GivenOut | OtherNumbers)
            if unnamed and not fine:
                raise OtherNumbers(_of_class(unnamed, int) or unnamed) from error
            raise
        if not request.run:
            tracing.roll_back()
            return replay, None
    tracing.capture.versions.clear()
    replay.program.lowered = None  # megabytes of text that nobody asked for
    return replay, replay.first(record)


def _compiled(tracing: Tracing, donate: bool) -> tuple[Record, Replay]:
    closed, backward = tracing.to_jaxpr()
    record = tracing.finish()
    return record, Replay(record, closed, donate, backward)


class OtherNumbers(Exception):
    """Trace again with these ``numbers`` as constants: their class or exact value matters.

    Without ``numbers``: sort the arguments again, others are inputs now.
    """

    def __init__(self, numbers: Iterable[tuple] = ()):
        super().__init__()
        self.numbers = [number for number, *_ in numbers]


def _refuse_constants(tracing: Tracing, unnamed: list[tuple]) -> None:
    """Raise for numbers whose class or very value matters to the function."""
    if tracing.watch.notes.forget_cached():
        raise OtherNumbers(unnamed)
    pinned = tracing.capture.tape.pinned
    constants = [one for one in unnamed if tracing.watch.tells_numbers(one[1]) or one[2] in pinned]
    if constants:
        raise OtherNumbers(constants)


def _of_class(unnamed: list[tuple], kind: type) -> list[tuple]:
    return [one for one in unnamed if one[1] is kind]


class Tracing:
    """One trace under way: :meth:`to_jaxpr` runs the function, :meth:`finish` gives the record."""

    def __init__(self, request: TraceRequest):
        self.function, self.form, self.parts = request.function, request.form, request.parts
        self.leaves, self.is_strict = request.leaves, request.is_strict
        self.capture = Capture()
        self.capture.given = self.leaves
        self.optimizers = self.capture.optimizers = Optimizers(self.capture)
        self.met: set[int] = set()  # parameters of modules and optimizers that were reached
        self.watch = self.capture.watch = Watch(self._met, request.scouted)
        self.fills: dict[int, int] = {}  # slots of the tape, by the leaf that fills them
        self.given = [
            self._argument(i, leaf, i in request.numbers) for i, leaf in enumerate(self.leaves)
        ]

    def _argument(self, index: int, leaf: Any, is_number: bool) -> Any:
        """A leaf as the function gets it."""
        if isinstance(leaf, torch.Tensor):
            self.capture.note_version(leaf)
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
            self.fills[self.capture.host.argument(leaf)] = index
        elif is_number:
            slot = self.capture.tape.constant(leaf)
            self.fills[slot] = index
            return number_of(self.capture, slot, leaf)
        return leaf

    def _met(self, value: Any) -> None:
        if isinstance(value, torch.nn.Module) and "_modules" not in vars(value):
            return  # a module whose __init__ is still under way
        if isinstance(value, torch.Tensor):
            self.capture.note_version(value)
        for tensor in parameters_of(value):
            # ``functional_call`` puts tensors of the trace in the parameters' place
            if not is_made_here(tensor) and tensor.is_leaf:
                self.capture.note_version(tensor)
                self.met.add(id(tensor))
                self.optimizers.note_gradient(tensor)

    # --- tracing ----------------------------------------------------------------------------------

    def to_jaxpr(self) -> tuple[Any, Backward | None]:
        """Run the function under a trace: the jaxpr of what it did, and its backward pass.

        The latter where the function leaves the gradients of its results to its caller.
        """
        with x64(), no_collection(), TRACING:
            try:
                closed = jax.make_jaxpr(self._run_function)()
            finally:
                self.capture.put_back()
        if self._gives_out_parts():
            raise GivenOut
        whole = jaxpr.with_inputs(closed, [entry.aval for entry in self.capture.inputs])
        if self.pullback is None:
            return phases.in_phases(whole), None
        first, count = self.pullback.first_input, self.pullback.count
        at = jaxpr.position(closed, first)
        outputs = len(whole.out_avals) - len(self.pullback.arrays)
        cut = jaxpr.Cut(whole, at, outputs, first, count)
        self.capture.drop_inputs(first, count)
        return cut.forward, Backward(self.pullback, cut)

    def _run_function(self) -> list[jax.Array]:
        with self.capture.active():
            args, kwargs = self.form.unflatten(self.given)
            self.given_containers = _containers((args, kwargs))
            self.world = keys.world()
            self.watch.start(self.function, self.leaves)
            try:
                # in a list, from which ``_describe`` takes it: the watch counts references to the
                # result's containers, and a name in this frame would be one more
                result = [self.function(*args, **kwargs)]
            finally:
                self.watch.stop()
            after, _ = flatten(args, kwargs)
            if len(after) != len(self.given) or any(map(is_not, after, self.given)):
                raise NotTraceableError(
                    "the function changes a list or dict among its arguments, which a compiled "
                    "call could not repeat: return the new value instead"
                )
            del args, kwargs, after
            if self.capture.failure is not None:  # the function caught the error and went on
                raise self.capture.failure
            return self._describe(result)

    def _describe(self, result: list[Any]) -> list[jax.Array]:
        """Describe what came of the run; the arrays that the program gives."""
        checks = list(self.capture.checks)
        self.checks = [(message, kind) for _, message, kind in checks]
        self.raised = self.capture.raised_versions()
        flags = [jnp.stack([ok for ok, _, _ in checks])] if checks else []
        self.watch.finish()
        self._doubt_borders(pytree.tree_leaves(result[0]))
        if self.is_strict:
            self.watch.refuse_doubt()
        self._forget_own_leaves()
        self.pullback = self._differentiate(result[0])
        gradients = self.pullback.arrays if self.pullback is not None else []
        self.watch.notes.release(result)
        templates = self._templates()
        self.result = templates.of(result.pop())
        self._describe_effects(templates)
        self.originals = templates.originals
        self.strays = self._strays(templates.new_storages)
        self.new_storages = [*templates.new_storages, *self.strays]
        self.written = self.capture.written()
        arrays = self._written_arrays(flags)
        arrays += [memory.array for memory in self.new_storages]
        return [*arrays, *flags, *gradients]

    def _doubt_borders(self, results: list[Any]) -> None:
        """Doubt what a caller could see of the run although it was skipped."""
        capture, proof = self.capture, self.watch.proof
        known = {*map(id, self.leaves), *self.watch.notes.tensors}
        whys = [
            border.rewritten(capture.histories[key] for key in capture.histories.keys() & known)
        ]
        self.saved: set[int] = set()
        if not capture.went_back:
            whys += [border.shared(capture, results), border.runs_python(results)]
            whys += [border.entangled(inputs_of(capture, self.leaves, self._noted()))]
            whys += ["a hook runs when its results are differentiated"] if proof.hooks else []
        for why in filter(None, whys):
            proof.add(why)
            self.watch.refuse_doubt()
        if not capture.went_back:
            self.saved = border.saved_memories(results)
        if keys.world() != self.world:
            proof.add("it leaves a mode or a setting other than it was")
        capture.histories.clear()

    def _templates(self) -> Templates:
        notes = self.watch.notes
        places = notes.places.values()
        containers = {id(place.owner) for place in places if isinstance(place, Contents)}
        known = self._known()
        reads_data = any("data" in names.attributes for names in self.watch.ran.users_names)
        return Templates(
            self.capture, self.leaves, known, containers, notes.new_objects, self.connected,
            reads_data, notes.young, self.given_containers,
        )  # fmt: skip

    def _describe_effects(self, templates: Templates) -> None:
        """What stands in places and ``.grad`` that changed."""
        owners = {id(p.owner): p.owner for p in self.watch.notes.places.values()}
        for owner in owners.values():
            refuse_changing_keys(owner)
        counts = self.watch.counts
        self.effects = [
            (place, templates.counted(place, now) if counts(place, now) else templates.of(now))
            for place, now in self.watch.notes.effects()
        ]
        self.effects += [(place, templates.of(now)) for place, now in self.optimizers.effects()]
        self.gradients = [
            (g, None if g.tensor.grad is None else templates.of(g.tensor.grad))
            for g in self.optimizers.gradients.values()
            if g.tensor.grad is not g.before or g.reset  # there may be one at a later call
        ]

    def _written_arrays(self, flags: list[jax.Array]) -> list[jax.Array]:
        """What the written storages hold; as before if an index was out of range.

        An operator on the CPU raises there before it writes; a compiled call can only raise after
        the program has run.
        """
        arrays = [entry.source.array for entry in self.written]
        if not flags:
            return arrays
        fine = jnp.all(flags[0])
        return [
            jnp.where(fine, new, entry.tracer) if new.shape == entry.aval.shape else new
            for new, entry in zip(arrays, self.written, strict=True)
        ]

    def _differentiate(self, result: Any) -> Pullback | None:
        """The backward pass from what the function returned, if it left that to its caller."""
        leaves = pytree.tree_leaves(result)
        self.connected: set[int] = set()
        wanted = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
        if self.capture.went_back or not wanted:
            return None
        pullback = Pullback(self.capture, leaves, self.leaves, self._noted(), self.saved)
        if not (pullback.positions and pullback.inputs):
            return None
        self.connected = {id(leaves[at]) for at in pullback.positions}
        return pullback

    def _noted(self) -> list[torch.Tensor]:
        return list(self.watch.notes.tensors.values())

    def _gives_out_parts(self) -> bool:
        """Whether parts are written, returned or kept, or what they are parts of is written."""
        places = [*self.parts.values(), *(self.leaves[i] for i in self.parts)]
        memories = {id(tensor.untyped_storage()) for tensor in places}
        given = {id(entry.source) for entry in self.written}
        for template in (self.result, *(t for _, t in (*self.effects, *self.gradients) if t)):
            for leaf in template.all_leaves():
                if isinstance(leaf, Argument) and leaf.place in self.parts:
                    return True
                if isinstance(leaf, View) and isinstance(leaf.source, Same):
                    given.add(id(leaf.source.value.untyped_storage()))
        return not memories.isdisjoint(given)

    def _forget_own_leaves(self) -> None:
        """Leaves that the function made of others' memory, such as ``x.detach()``, are its own."""
        held = [*self.watch.notes.tensors.values(), *self.leaves]
        held += self.optimizers.stepped_parameters()
        known = set(map(id, held)) | self.met
        for table in (self.capture.leaves, self.optimizers.gradients):
            for key in table.keys() - known:
                del table[key]

    def _known(self) -> dict[int, torch.Tensor]:
        known = self.watch.notes.tensors | self.capture.leaves
        known |= {id(tensor): tensor for tensor in self.capture.of_engine}
        return known | {id(g.tensor): g.tensor for g in self.optimizers.gradients.values()}

    def _strays(self, accounted: list[Any]) -> list[Any]:
        """Storages made in the trace that live on in a place nobody watches."""

        def strays() -> list[Any]:
            known = set(map(id, accounted))
            return [memory for memory in self.capture.new_storages() if id(memory) not in known]

        if strays():
            gc.collect()  # storages that only reference cycles hold are garbage, not strays
        return strays()

    def roll_back(self) -> None:
        """Undo everything."""
        self.capture.put_back()
        self.watch.stop()
        self.watch.undo()
        self.optimizers.restore_gradients()
        self.capture.roll_back()

    # --- afterwards -------------------------------------------------------------------------------

    def _hooks(self) -> list[Place]:
        """Where the hooks of parameters stand."""
        places: list[Place] = []
        for leaf in self.capture.leaves.values():
            for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                hooks = Attribute(leaf, name, f"a parameter's {name}")
                places.append(hooks)
                if isinstance(hooks.value, dict):
                    places.append(Contents(hooks.value, "", hooks.label))
        return places

    def _is_input(self, tensor: torch.Tensor) -> bool:
        return self.capture.input_of(tensor.untyped_storage()) is not None

    def finish(self) -> Record:
        """What the trace found out; it is over."""
        guards = self._guards()
        draws = list(self.capture.draws.values())
        for each in draws:
            each.end()
        self._refuse_unknown_roots()
        return Record(
            self.leaves, self.capture.inputs, draws, self.capture.tape, self.fills,
            [(tensor, slot) for tensor, slot, _ in self.capture.host.roots], guards, self.result,
            self.effects, self.gradients, self.checks, self.written, self.new_storages,
            self.strays, self.originals, self.watch.proof.doubt, self.raised,
            bool(self.optimizers.stepped_parameters()), self.capture.processes,
        )  # fmt: skip

    def _refuse_unknown_roots(self) -> None:
        """Raise for CPU tensors whose origin is not known."""
        given = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        tensors = (
            *self.watch.notes.tensors.values(),
            *given,
            *_state_tensors(self.optimizers.stepped),
        )
        known = {id(tensor.untyped_storage()) for tensor in tensors}
        for tensor, _, line in self.capture.host.roots:
            if id(tensor.untyped_storage()) not in known:
                raise NotTraceableError(
                    f"a {errors.describe(tensor)} tensor on the CPU was read ({line}) that is "
                    "neither an argument nor found in the globals, closures and attributes that "
                    "the function names (the next batch of an iterator, an array of NumPy's?), so "
                    "that torch_jax.jit could not tell when it is another one. Pass it as an "
                    "argument."
                )

    def _guards(self) -> Guards:
        """What the trace relied on."""
        places = [place for place in self.watch.notes.places.values() if place.is_read]
        places += self.optimizers.places.values()
        places += self._hooks()
        counted = [p for p, t in self.effects if any(isinstance(n, Counted) for n in t.leaves)]
        places += [NumberClass(p.owner, p.key, f"the class of {p.label}", int) for p in counted]
        irreplaceable = self.optimizers.stepped_parameters()
        stepped = set(map(id, irreplaceable))
        gradients: dict[int, tuple[torch.Tensor, Any]] = {}
        for key, g in self.optimizers.gradients.items():
            if g.reset:
                continue
            if g.before is None:
                if g.tensor.grad is not None or key in stepped or self.watch.reads("grad"):
                    gradients[key] = g.tensor, None
            elif self.watch.reads("grad") or self._is_input(g.before):
                gradients[key] = g.tensor, g.before
        irreplaceable += self.watch.notes.cached.values()
        if self.capture.processes is not None:
            # the buckets of DistributedDataParallel, which its C++ holds: written before they are
            # read, and no later call runs that C++
            irreplaceable += self.capture.of_engine
        irreplaceable += self._put_somewhere()
        irreplaceable += [g.tensor for g, _ in self.gradients]
        templates = [self.result, *(template for _, template in self.effects)]
        fixed = [leaf.value for t in templates for leaf in t.all_leaves() if isinstance(leaf, Same)]
        return Guards(places, gradients, irreplaceable, fixed)

    def _put_somewhere(self) -> list[torch.Tensor]:
        """The tensors of before that a call returns or puts somewhere: these, and no others."""
        templates = [self.result, *(template for _, template in self.effects)]
        templates += [template for _, template in self.gradients if template is not None]
        leaves = [leaf for template in templates for leaf in template.all_leaves()]
        values = [leaf.value for leaf in leaves if isinstance(leaf, Same)]
        return [value for value in values if isinstance(value, torch.Tensor)]


def _containers(value: Any) -> set[int]:
    """The ids of the lists, dicts and deques in a value."""
    found: set[int] = set()
    for one in containers_of(value, found):
        found.add(id(one))  # before what is in it is looked at: it may hold itself
    return found


def _state_tensors(optimizers: list[Any]) -> list[torch.Tensor]:
    found: list[Any] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            found += group.values()
        for state in optimizer.state.values():
            found += state.values()
    return [value for value in found if isinstance(value, torch.Tensor)]
