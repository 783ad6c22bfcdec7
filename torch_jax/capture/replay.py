"""A function that was traced: its program, its guards, and what a call does around it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import torch
from torch.autograd.graph import increment_version
from torch.utils import _pytree as pytree

from torch_jax.capture.capture import Input, begin_draws
from torch_jax.capture.gradients import Gradients
from torch_jax.capture.host.tape import Changed
from torch_jax.capture.outer_backward import Backward, Connected, Pullback
from torch_jax.capture.part_arguments import GivenOut
from torch_jax.capture.state.places import put
from torch_jax.capture.templates import Call, Template
from torch_jax.compiler.program import Program
from torch_jax.core import errors, policies
from torch_jax.core.numbers import is_or_holds_number
from torch_jax.core.tracers import NotTraceableError
from torch_jax.core.x64 import x64
from torch_jax.memory import generators as random
from torch_jax.memory.storage import is_jax

if TYPE_CHECKING:
    from torch_jax.capture.tracing import Tracing

_ALONE = 3  # references to an array that only its storage holds, while a call counts them
_NO_NUMBERS = np.zeros(0)


class Traced:
    """A compiled trace: what it takes from where, and what becomes of its results."""

    def __init__(
        self, tracing: Tracing, closed: Any, donate: bool, backward: Backward | None = None
    ):
        """Arrange the inputs by kind, and compile."""
        capture = tracing.capture
        self.backward = backward
        self.tape, self.fills = capture.tape, tracing.fills
        self.guards = tracing.guards()
        self.result, self.effects = tracing.result, tracing.effects
        templates = [self.result, *(template for _, template in self.effects)]
        self.gradients = Gradients(tracing.gradients, templates)
        self.checks = [(message, kind) for _, message, kind in tracing.checks]
        self.verified, self.donates = 0, True
        self._arrange(tracing)
        order = [*self._captured, *self._given, *self._hosts, *self._words]
        inputs = capture.inputs
        written = {entry.index for entry in tracing.written}
        if backward is not None:
            written -= set(backward.cut.kept)  # the backward pass needs them as they were
        numbers = [i for i, entry in enumerate(inputs) if entry.kind == "number"]
        self.number_slots = [inputs[i].source for i in numbers]
        self.program = Program(closed, numbers, order, written if donate else set())
        self._donated = [at - 1 for at in self.program.donated]
        place = {index: at for at, index in enumerate(order)}
        self._written = [place[entry.index] for entry in tracing.written]
        self._flags = len(self._written) + len(tracing.made)
        if backward is not None:
            spot = place | {index: ~at for at, index in enumerate(numbers)}
            self._kept = [spot[index] for index in backward.cut.kept]
            self._sources = self._sources_of(backward.pullback, tracing.leaves)
        self._rebind()
        self._view_of = {inputs[i]: place[i] for i in (*self._captured, *self._given)}
        self._needed()
        self.repeatable = self._why_not(tracing)

    def _arrange(self, tracing: Tracing) -> None:
        """Sort the inputs: captured storages, arguments' storages, host arrays, key words."""
        inputs, leaves = tracing.capture.inputs, tracing.leaves
        self.inputs = inputs
        owners = {
            id(leaf.untyped_storage()): i
            for i, leaf in enumerate(leaves)
            if isinstance(leaf, torch.Tensor) and is_jax(leaf)
        }
        held = {id(memory): k for k, memory in enumerate(self.guards.storages)}
        self._captured: list[int] = []
        self._given: list[int] = []
        self._holders: list[int] = []  # which of the guards' tensors holds each captured storage
        self._leaf_of: list[int] = []
        for index, entry in enumerate(inputs):
            if entry.kind != "storage":
                continue
            if id(entry.source) in owners:
                self._given.append(index)
                self._leaf_of.append(owners[id(entry.source)])
            elif id(entry.source) in held:
                self._captured.append(index)
                self._holders.append(held[id(entry.source)])
            else:
                raise _unknown(entry)
        self._hosts = [i for i, entry in enumerate(inputs) if entry.kind == "host"]
        self._words = [i for i, entry in enumerate(inputs) if entry.kind == "words"]
        self._host_slots = [inputs[i].source for i in self._hosts]
        self._draws = list(tracing.capture.draws.values())
        for draws in self._draws:
            draws.end()
        self._pinned = {i: held[key] for key, i in owners.items() if key in held}
        _refuse_unknown_roots(tracing)
        held_tensors = {id(tensor): k for k, tensor in enumerate(self.guards.tensors)}
        roots = tracing.capture.host.roots
        self._roots = [(slot, held_tensors[id(t)]) for t, slot, _ in roots if id(t) in held_tensors]

    def _sources_of(self, pullback: Pullback, leaves: list[Any]) -> list[tuple[str, int]]:
        """Where each call finds the tensors that gradients flow to."""
        given = {id(leaf): i for i, leaf in enumerate(leaves)}
        held = {id(tensor): k for k, tensor in enumerate(self.guards.tensors)}
        sources = []
        for tensor in pullback.inputs:
            if id(tensor) in given:
                sources.append(("argument", given[id(tensor)]))
            elif id(tensor) in held:
                sources.append(("held", held[id(tensor)]))
            else:
                raise _unknown(self.inputs[0])
        pullback.inputs = []  # those of this call, which nobody needs any more
        return sources

    def _rebind(self) -> None:
        """Take the storages from the tensors that the guards hold now."""
        self._storages = [self.guards.storages[k] for k in self._holders]
        for at, k in self._roots:
            self.tape.env[at] = self.guards.tensors[k]
        captured = len(self._captured)
        written = {self._holders[at] for at in self._written if at < captured}
        tensors = [self.guards.tensors[k] for k in sorted(written)]
        self._counted = [tensor for tensor in tensors if not tensor.is_inference()]
        given = {self._leaf_of[at - captured] for at in self._written if at >= captured}
        self._counted_leaves = sorted(given) if not torch.is_inference_mode_enabled() else []
        self._held = {id(memory): k for k, memory in enumerate(self.guards.storages)}

    def _needed(self) -> None:
        """Keep of the tape what a call needs."""
        templates: list[Template] = [self.result, *(leaf for _, leaf in self.effects)]
        slots = {leaf.slot for t in templates for leaf in t.all_leaves() if hasattr(leaf, "slot")}
        self.tape.prune(slots | set(self.number_slots) | set(self._host_slots))

    def _why_not(self, tracing: Tracing) -> str | None:
        """Why the trace cannot stand for later calls, None where it can."""
        if tracing.strays:
            shown = ", ".join(f"{s.array.dtype}{list(s.array.shape)}" for s in tracing.strays[:3])
            return (
                f"{len(tracing.strays)} new tensors ({shown}) are kept in a place that is not "
                "watched; return them instead"
            )
        return None

    # --- calling ----------------------------------------------------------------------------------

    def first(self, tracing: Tracing) -> Any:
        """Run for the call that was traced: Python's part of it has been done."""
        for entry in self.inputs:
            entry.array = None
        words = [_words_before(draws) for draws in self._draws]
        outputs, saved = self._launch(tracing.leaves, self.tape.env, words)
        call = self._call(tracing.leaves, self.tape.env, outputs)
        for index, memory in enumerate(tracing.made):
            memory.array = call.outputs[index]
            call.made[index] = memory
        call.tensors.update(tracing.originals)
        for item, template in self.effects:
            if is_or_holds_number(item.now()):  # which only this trace knows
                put(item, template.build(call))
        result = self._result(call, saved)
        for entry in self.inputs:
            entry.source, entry.tracer = None, None
        self._check(outputs)
        return result

    def __call__(self, leaves: list[Any]) -> Any:
        """Run again; raises :class:`Changed` where the trace does not fit any more."""
        self.settle(leaves)
        env = self.tape.env
        if self.tape.steps or self.fills:
            env = self.tape.play({slot: leaves[i] for slot, i in self.fills.items()})
        self.gradients.clear()
        words = begin_draws(self._draws)
        try:
            outputs, saved = self._launch(leaves, env, words)
        except BaseException:
            self.gradients.drop()
            raise
        call = self._call(leaves, env, outputs)
        for item, template in self.effects:
            put(item, template.build(call))
        self.gradients.fill(call)
        result = self._result(call, saved)
        self._check(outputs)
        return result

    def _result(self, call: Call, saved: list[Any]) -> Any:
        """What the function returns, connected with what gradients flow to."""
        if self.backward is None:
            return self.result.build(call)
        leaves = self.result.build_leaves(call)
        positions = self.backward.pullback.positions
        inputs = [
            call.arguments[at] if kind == "argument" else self.guards.tensors[at]
            for kind, at in self._sources
        ]
        outputs = [leaves[i] for i in positions]
        connected = Connected.apply(self.backward, saved, outputs, *inputs)
        for i, tensor in zip(positions, connected, strict=True):
            leaves[i] = tensor
        return pytree.tree_unflatten(leaves, self.result.form)

    def generators(self) -> list[Any]:
        """The generators that a call draws from."""
        return [draws.generator for draws in self._draws]

    def host_tensors(self) -> list[torch.Tensor]:
        """The CPU tensors that a call may change."""
        return [t for t in self.guards.tensors if not is_jax(t)]

    def settle(self, leaves: list[Any]) -> None:
        """Check the guards."""
        if not self.guards.hold() and self.guards.settle():
            self._rebind()
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                if self._held.get(id(leaf.untyped_storage())) != self._pinned.get(index):
                    raise Changed("an argument shares memory with a tensor the function holds")

    def refuse_written(self, parts: Mapping[int, torch.Tensor]) -> None:
        """Raise :class:`GivenOut` where a call would write what an argument is a part of."""
        captured = len(self._captured)
        written = {id(self._storages[at]) for at in self._written if at < captured}
        if any(id(part.untyped_storage()) in written for part in parts.values()):
            raise GivenOut

    def _launch(self, leaves: list[Any], env: list[Any], words: list[Any]) -> tuple[list, list]:
        """Run the executable, and put back what it wrote.

        Returns its outputs, and what the backward pass needs.
        """
        storages = self._storages + [leaves[i].untyped_storage() for i in self._leaf_of]
        arrays = [memory.array for memory in storages]
        alone = _ALONE if self.donates else 0
        shared = [at for at in self._donated if sys.getrefcount(arrays[at]) > alone]
        arrays += [env[slot] for slot in self._host_slots]
        arrays += words
        numbers = _NO_NUMBERS
        if self.number_slots:
            numbers = np.array([env[slot] for slot in self.number_slots], np.float64)
        with x64():
            for at in shared:  # another storage, or the user, holds the array too
                arrays[at] = jnp.array(arrays[at], copy=True)
            try:
                outputs = self.program.call(numbers, *arrays)
            except (TypeError, ValueError) as error:
                raise Changed(
                    f"the memory behind a tensor has another form now: {error}"
                ) from error
            except RuntimeError as error:
                raise errors.translate(error, "in a function under torch_jax.jit") from error
        for at, array in zip(self._written, outputs, strict=False):
            storages[at].array = array
        # autograd then knows that what it saved of these is not what it was
        increment_version(self._counted)
        if self._counted_leaves:
            increment_version([leaves[i] for i in self._counted_leaves])
        if self.backward is None:
            return outputs, []
        kept = [arrays[at] if at >= 0 else numbers[~at] for at in self._kept]
        return outputs, kept + outputs[len(outputs) - self.backward.cut.residuals :]

    def _call(self, leaves: list[Any], env: list[Any], outputs: list[Any]) -> Call:
        def storage_of(entry: Input) -> Any:
            at = self._view_of[entry]
            if at < len(self._storages):
                return self._storages[at]
            return leaves[self._leaf_of[at - len(self._storages)]].untyped_storage()

        return Call(leaves, env, storage_of, outputs[len(self._written) :])

    def _check(self, outputs: list[Any]) -> None:
        """Raise what an operator would have raised, had it been able to look."""
        if self.checks and policies.checks_indices():
            for ok, (message, kind) in zip(
                np.asarray(outputs[self._flags]), self.checks, strict=True
            ):
                if not ok:
                    raise kind(f"{message} (in a function under torch_jax.jit)")


def _words_before(draws: Any) -> Any:
    return random.words(draws.seed, draws.offset)


def _unknown(entry: Input) -> NotTraceableError:
    shape = ",".join(map(str, entry.aval.shape))
    return NotTraceableError(
        f"a {entry.aval.dtype}[{shape}] tensor was read ({entry.line}) that is neither an argument "
        "nor found in the globals, closures and attributes that the function names, so that "
        "torch_jax.jit could not tell when it is another one. Pass it as an argument."
    )


def _refuse_unknown_roots(tracing: Tracing) -> None:
    """Raise for CPU tensors whose origin is not known."""
    known = {id(t.untyped_storage()) for t in tracing.watch.tensors.values()}
    known |= {id(t.untyped_storage()) for t in tracing.leaves if isinstance(t, torch.Tensor)}
    known |= {id(t.untyped_storage()) for t in _state_tensors(tracing.optimizers.stepped)}
    for tensor, _, line in tracing.capture.host.roots:
        if id(tensor.untyped_storage()) not in known:
            raise NotTraceableError(
                f"a {errors.describe(tensor)} tensor on the CPU was read ({line}) that is neither "
                "an argument nor found in the globals, closures and attributes that the function "
                "names (the next batch of an iterator, an array of NumPy's?), so that "
                "torch_jax.jit could not tell when it is another one. Pass it as an argument."
            )


def _state_tensors(optimizers: list[Any]) -> list[torch.Tensor]:
    found: list[Any] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            found += group.values()
        for state in optimizer.state.values():
            found += state.values()
    return [value for value in found if isinstance(value, torch.Tensor)]
