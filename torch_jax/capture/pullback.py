"""Results that are differentiated outside of the function: a compiled model in a training loop.

The backward pass of an observed call is recorded as well, from placeholders of the gradients to
come. So a later call has two programs: one gives the results, and residuals for the other, which
runs in ``backward()``.

After a recorded call whose results want gradients, the next backward pass of the process is
recorded. That it goes through these results is not checked: a recording of any other is sound, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax.numpy as jnp
import torch
from torch.autograd.function import once_differentiable

from torch_jax._private import functorch, pytorch
from torch_jax.capture.cpu_tensors import OfHost
from torch_jax.capture.draws import Numbers
from torch_jax.capture.observer import Observer
from torch_jax.capture.results import Call, LeftBehind
from torch_jax.capture.storages import OfResult, OfStorage
from torch_jax.core import autograd_nodes, tracers, trees
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Node
from torch_jax.core.patching import AT_FIRST_JIT, around
from torch_jax.core.x64 import x64
from torch_jax.memory import storage, transfer
from torch_jax.memory.forms import Form
from torch_jax.recorded import lazy, path
from torch_jax.recorded.program import Listener, Program

_NOTHING = torch.empty(0)


class OfGradient(NamedTuple):
    """The gradient of a result, by its place among those that gradients flow from."""

    at: int


class Pullback:
    """The backward pass of one call."""

    def __init__(self, observer: Observer, left: LeftBehind):
        """Record the backward pass from the results of a call that was just run."""
        self._result, self._positions = left.result, left.positions
        outputs = left.connected
        inputs = [t for t in observer.wanted.values() if t.requires_grad and storage.is_jax(t)]
        _refuse_entangled(observer, inputs)
        saved = autograd_nodes.saved_memories(outputs)
        self._saves = bool(saved)
        # tensors; the place of those that are arguments
        self._inputs = [observer.owner(t) for t in inputs]
        older = {id(t): t for t in (*inputs, *(known[0] for known in observer.outlines.values()))}
        held = (t for t in older.values() if id(t.untyped_storage()) in saved)
        self._saved = list(map(observer.owner, held))
        self._saved_results = [
            at for at, one in enumerate(outputs) if id(one.untyped_storage()) in saved
        ]
        with x64():
            zeros = [jnp.zeros(one.shape, transfer.value_of(one.detach()).dtype) for one in outputs]
        given = [storage.wrap(zero, one.dtype) for zero, one in zip(zeros, outputs, strict=True)]
        for at, one in enumerate(given):
            observer.storages.makes(one)
            observer.storages.comes_from(storage.held_by(one), OfGradient(at))
        before = {id(one.storage): one.storage.array for one in observer.storages.met}
        is_not_run = Listener(takes_checks=True)
        with lazy.observed(is_not_run), observer.watching(), _without_hooks(inputs):
            try:
                found: Any = torch.autograd.grad(
                    outputs, inputs, given, allow_unused=True, retain_graph=True
                )
            except (tracers.DataDependentError, tracers.NotTraceableError):
                raise
            except Exception as error:  # whether the caller's own pass raises it is left to that
                found = None
                observer.refuse(f"its backward pass raises where it is recorded: {error}")
            _take_back_writes(observer, before)
            recording = ACTIVE.recorder.recording
            ACTIVE.recorder.leave(recording)  # in place of running it
            if found is not None:
                self._keep(observer, recording, found)

    def _keep(self, observer: Observer, recording: Any, found: Sequence[Any]) -> None:
        state, _, numbers, arrays = recording.written_down()
        self._sources = list(map(observer.storages.source, arrays))
        self._numbers = Numbers(observer.draws, state, numbers)
        # the results of the forward pass that it needs, each with its place in the program's
        places = observer.graphs[0].program.places
        residuals = sorted({s.node for s in self._sources if isinstance(s, OfResult)})
        self._residuals = [(node, places[node]) for node in residuals]
        # the place of each gradient's memory among the results, or the gradient of a result itself
        self._made: list[tuple[Any, Form] | None] = [
            None if g is None else (_place(observer, storage.held_by(g)), Form.of(g)) for g in found
        ]
        nodes = {one[0] for one in self._made if one is not None and type(one[0]) is int}
        known = (one for one in state.programs if one.places.keys() == nodes and not one.donated)
        self._program = next(known, None) or Program(state, tuple(sorted(nodes)), (), arrays)
        state.programs = list({*state.programs, self._program})  # an audited call has the same
        path.note_run(self._program, state)

    def connect(
        self, call: Call, leaves: Sequence[Any], storages: list[Any], outputs: list[Any], drawn: Any
    ) -> Any:
        """Return the result of a call, connected, of its storages, outputs and places of draws."""
        template = self._result
        built = list(map(call.leaf, template.leaves))
        of_node = {node: outputs[at] for node, at in self._residuals}
        saved = [_saved(source, of_node, storages, leaves) for source in self._sources]
        inputs, held = (
            [trees.owned(one, leaves) for one in tensors] for tensors in (self._inputs, self._saved)
        )
        results = [built[at] for at in self._positions]
        connected = _Connected.apply(self, saved, results, held, drawn, *inputs)
        instead = dict(zip(map(id, results), connected, strict=True))
        return trees.unflatten(template.form, [instead.get(id(one), one) for one in built])

    def run(self, saved: list[Any], gradients: Sequence[torch.Tensor], drawn_from: Any) -> list:
        """Return the gradients of the inputs."""
        given = {OfGradient(at): transfer.value_of(one) for at, one in enumerate(gradients)}
        # of CPU tensors the elements that the backward pass finds
        arrays = [one.read(()) if isinstance(one, OfHost) else one for one in saved]
        for at, source in enumerate(self._sources):
            arrays[at] = given[source] if isinstance(source, OfGradient) else arrays[at]
        found = self._program(*self._numbers.of_call([], drawn_from), arrays)
        results: dict[Any, Any] = given | dict(zip(self._program.outputs, found, strict=True))
        return [
            None if one is None else one[1].over(storage.wrap(results[one[0]]).untyped_storage())
            for one in self._made
        ]


@contextmanager
def _without_hooks(inputs: list[torch.Tensor]) -> Iterator[None]:
    """Keep hooks of the inputs, which run in the caller's pass, out of the program."""
    lists: list[Any] = [one._backward_hooks for one in inputs if one._backward_hooks]
    hooks = [dict(one) for one in lists]
    for one in lists:
        one.clear()
    try:
        yield
    finally:
        for one, before in zip(lists, hooks, strict=True):
            one.update(before)


def _refuse_entangled(observer: Observer, inputs: list[torch.Tensor]) -> None:
    """Refuse inputs of which one was computed from another: their gradients are no partial ones."""
    known, ends = set(map(id, inputs)), {tensor.grad_fn for tensor in inputs} - {None}
    for node in autograd_nodes.nodes(inputs):
        within = any(following in ends for following, _ in node.next_functions)
        if within or id(getattr(node, "variable", None)) in known:
            observer.refuse("gradients are wanted of two tensors, one computed from the other")


def _take_back_writes(observer: Observer, before: dict[int, Any]) -> None:
    """Undo what the recorded backward pass has written: its program gives gradients only."""
    for one in observer.storages.met:
        old, new = before.get(id(one.storage), one.old()), one.storage.array
        if observer.storages.is_of_others(new):
            observer.disturb()
        elif new is not old:
            storage.put_back((one.storage,), (new,), (old,))
            observer.refuse("its backward pass, which its caller runs, writes into a tensor")


def _place(observer: Observer, memory: Any) -> Any:
    if type(memory) is Node:
        return memory.index
    source = observer.storages.source(memory)
    if not isinstance(source, OfGradient):
        observer.refuse("the gradient of an argument does not come out of its program")
    return source


def _saved(source: Any, of_node: dict[int, Any], storages: list[Any], leaves: Sequence) -> Any:
    if isinstance(source, OfResult):
        return of_node[source.node]
    if isinstance(source, OfStorage):
        return storage.memory_in(storages[source.at])
    if isinstance(source, OfHost):
        return source._replace(tensor=trees.owned(source.tensor, leaves))
    return None if isinstance(source, OfGradient) else source.array


class _Connected(torch.autograd.Function):
    """Connects a call's results with what they were computed from."""

    @staticmethod
    def forward(
        ctx: Any, pullback: Pullback, saved: list, results: list, held: list, drawn: Any, *_: Any
    ) -> Any:
        """Return the results; ``held`` are older tensors that the backward pass saves."""
        ctx.pullback, ctx.arrays, ctx.drawn = pullback, saved, drawn
        if pullback._saves:
            # PyTorch then raises where one was written since, or the graph is gone through again
            more = [results[at] for at in pullback._saved_results]
            ctx.save_for_backward(*held, *more, _NOTHING)
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.pullback._saves:
            ctx.saved_tensors  # noqa: B018, asked for what it raises

        def run(gradients: Any) -> list:
            return ctx.pullback.run(ctx.arrays, gradients, ctx.drawn)

        return None, None, None, None, None, *functorch.for_each_sample(run, gradients)


# --- backward passes of recorded calls ------------------------------------------------------------


class _Mark:
    """A mark that lives as long as a node of autograd's graph, which may outlive its tensor."""


# of results whose gradients are left to the caller
_awaited: weakref.WeakSet[_Mark] = weakref.WeakSet()


def await_gradients(result: Any) -> None:
    """Have the next backward pass recorded, if it may be that of these results."""
    leaves = trees.flatten(result)[0] if torch.is_grad_enabled() else ()
    nodes = (leaf.grad_fn for leaf in leaves if storage.is_jax_tensor(leaf))
    if node := next(filter(None, nodes), None):
        mark = node.metadata["torch_jax"] = _Mark()
        _awaited.add(mark)


@around("torch.autograd.backward", AT_FIRST_JIT)
@around("torch.autograd.grad", AT_FIRST_JIT)
def _backward(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Record the backward pass through results of a compiled function: it runs as one program."""
    if ACTIVE.observer is not None:
        ACTIVE.observer.went_back = True
    if not _awaited or lazy.is_recording() or pytorch.current_graph_task() != -1:
        return original(*args, **kwargs)
    _awaited.clear()  # later passes do not go through these results
    with lazy.observed(Listener("backward pass")):
        return original(*args, **kwargs)
