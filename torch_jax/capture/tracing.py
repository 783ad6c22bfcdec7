"""Tracing a function: running it once, and noting what it relied on and what became of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import is_not
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils import _pytree as pytree

from torch_jax.capture.capture import Capture
from torch_jax.capture.outer_backward import Backward, Cut, Pullback
from torch_jax.capture.part_arguments import GivenOut
from torch_jax.capture.replay import Traced
from torch_jax.capture.state import changing_numbers
from torch_jax.capture.state.guards import Guards
from torch_jax.capture.state.places import Item, read_place, slot
from torch_jax.capture.state.watch import Watch, is_made_here
from torch_jax.capture.templates import Argument, Counted, Same, Templates, View
from torch_jax.capture.training.optimizers import Optimizers, parameters_of
from torch_jax.capture.trees import flatten
from torch_jax.compiler import program
from torch_jax.core.active import TRACING
from torch_jax.core.numbers import number_of
from torch_jax.core.tracers import NotTraceableError
from torch_jax.core.x64 import x64


def trace(
    function: Callable[..., Any],
    leaves: list,
    form: Any,
    numbers: frozenset,
    donate: bool,
    parts: Mapping[int, torch.Tensor] = MappingProxyType({}),
    changing: frozenset[int] = frozenset(),
    places: Collection[Item] = (),
    run: bool = True,
) -> tuple[Traced, Any]:
    """Trace, compile and (unless ``run`` is false) run a function once.

    In place of ``parts`` the leaves are copies; :class:`GivenOut` where these do not do.
    ``changing`` arguments and ``places`` are numbers that nobody named; :class:`OtherNumbers` where
    these may be at fault. Whatever goes wrong, tensors and Python's state are as before.
    """
    tracing = Tracing(function, leaves, form, numbers, parts)
    with changing_numbers.lifted(tracing.capture, places) as lifted:
        tracing.watch.lifted = {(id(item.owner), item.key) for item, _ in lifted}
        fills = tracing.fills.items()
        unnamed: list[tuple] = [(i, type(leaves[i]), at) for at, i in fills if i in changing]
        unnamed += [(item, type(item.now().value), at) for item, at in lifted]
        try:
            entry = tracing.trace(donate)
            if unnamed:
                _refuse_constants(tracing, unnamed)
        except BaseException as error:
            tracing.roll_back()
            fine = not isinstance(error, Exception) or isinstance(error, GivenOut | OtherNumbers)
            if unnamed and not fine:
                raise OtherNumbers(_of_class(unnamed, int) or unnamed) from error
            raise
        if not run:
            tracing.roll_back()
            return entry, None
    entry.program.lowered = None  # megabytes of text that nobody asked for
    return entry, entry.first(tracing)


class OtherNumbers(Exception):
    """Some ``numbers``, arguments or places, had better not be inputs of the program."""

    def __init__(self, numbers: Iterable[tuple] = ()):
        super().__init__()
        self.numbers = [number for number, *_ in numbers]


def _refuse_constants(tracing: Tracing, unnamed: list[tuple]) -> None:
    """Raise for numbers whose class or very value matters to the function."""
    if tracing.watch.forget_cached():
        raise OtherNumbers(unnamed)
    pinned = tracing.capture.tape.pinned
    told = [one for one in unnamed if tracing.watch.tells_numbers(one[1]) or one[2] in pinned]
    if told:
        raise OtherNumbers(told)


def _of_class(unnamed: list[tuple], kind: type) -> list[tuple]:
    return [one for one in unnamed if one[1] is kind]


@contextmanager
def _no_collection() -> Iterator[None]:
    """What Python runs when it collects garbage is none of the function's."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Tracing:
    """One trace under way."""

    def __init__(
        self, function: Any, leaves: list, form: Any, numbers: frozenset[int], parts: Mapping
    ):
        self.function, self.form, self.leaves, self.parts = function, form, leaves, parts
        self.capture = Capture()
        self.optimizers = self.capture.optimizers = Optimizers(self.capture)
        self.met: set[int] = set()  # parameters of modules and optimizers that were reached
        self.watch = self.capture.watch = Watch(self._met)
        self.fills: dict[int, int] = {}  # slots of the tape, by the leaf that fills them
        self.given = [self._argument(i, leaf, i in numbers) for i, leaf in enumerate(leaves)]

    def _argument(self, index: int, leaf: Any, is_number: bool) -> Any:
        """A leaf as the function gets it."""
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
            self.fills[self.capture.host.argument(leaf)] = index
        elif is_number:
            slot = self.capture.tape.constant(leaf)
            self.fills[slot] = index
            return number_of(self.capture, slot, leaf)
        return leaf

    def _met(self, value: Any) -> None:
        if isinstance(value, torch.nn.Module) and "_modules" not in vars(value):
            return  # one that is being made
        for tensor in parameters_of(value):
            # ``functional_call`` puts others in their place
            if not is_made_here(tensor) and tensor.is_leaf:
                self.met.add(id(tensor))
                self.optimizers.note_gradient(tensor)

    # --- tracing ----------------------------------------------------------------------------------

    def trace(self, donate: bool) -> Traced:
        """Run the function under a trace and compile what it did."""
        with x64(), _no_collection(), TRACING:
            try:
                closed = jax.make_jaxpr(self._run)()
            finally:
                self.capture.put_back()
        if self._gives_out_parts():
            raise GivenOut
        whole = program.with_inputs(closed, [entry.aval for entry in self.capture.inputs])
        if self.pullback is None:
            return Traced(self, whole, donate)
        first, count = self.pullback.first_input, self.pullback.count
        at = program.position(closed, first)
        outputs = len(whole.out_avals) - len(self.pullback.arrays)
        cut = Cut(whole, at, outputs, first, count)
        self.capture.drop_inputs(first, count)
        return Traced(self, cut.forward, donate, Backward(self.pullback, cut))

    def _run(self) -> list[jax.Array]:
        with self.capture.active():
            args, kwargs = self.form.unflatten(self.given)
            self.watch.start(self.function, self.leaves)
            try:
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
            if self.capture.failure is not None:  # the function went on after it
                raise self.capture.failure
            return self._finish(result)

    def _finish(self, result: list[Any]) -> list[jax.Array]:
        """Describe what came of the run; the arrays that the program gives."""
        self.checks = list(self.capture.checks)
        flags = [jnp.stack([ok for ok, _, _ in self.checks])] if self.checks else []
        self.watch.finish()
        self._forget_own_leaves()
        self.pullback = self._differentiate(result[0])
        gradients = self.pullback.arrays if self.pullback is not None else []
        self.watch.release(result[0])
        containers = {id(i.owner) for i in self.watch.items.values() if i.kind == "contents"}
        made = self.watch.made
        templates = Templates(self.capture, self.leaves, self._known(), containers, made)
        self.result = templates.of(result.pop())
        counts = self.watch.counts
        self.effects = [
            (item, templates.counted(item, now) if counts(item, now) else templates.of(now))
            for item, now in self.watch.effects()
        ]
        self.effects += [(item, templates.of(now)) for item, now in self.optimizers.effects()]
        self.gradients = [
            (g, None if g.tensor.grad is None else templates.of(g.tensor.grad))
            for g in self.optimizers.gradients.values()
            if g.tensor.grad is not g.before
        ]
        self.originals = templates.originals
        self.strays = self._strays(templates.storages)
        self.made = [*templates.storages, *self.strays]
        self.written = self.capture.written()
        arrays = [entry.source.array for entry in self.written]
        if flags:  # where an index was out of range nothing is written, and an error raised
            fine = jnp.all(flags[0])
            each = zip(arrays, self.written, strict=True)
            arrays = [
                jnp.where(fine, new, entry.tracer) if new.shape == entry.aval.shape else new
                for new, entry in each
            ]
        arrays += [memory.array for memory in self.made]
        return [*arrays, *flags, *gradients]

    def _differentiate(self, result: Any) -> Pullback | None:
        """The backward pass from what the function returned, if it left that to its caller."""
        leaves = pytree.tree_leaves(result)
        wanted = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
        if self.capture.went_back or not wanted:
            return None
        known = list(self.watch.tensors.values())
        pullback = Pullback(self.capture, leaves, self.leaves, known)
        return pullback if pullback.positions and pullback.inputs else None

    def _gives_out_parts(self) -> bool:
        """Whether parts are written, returned or kept, or what they are parts of is written."""
        places = [*self.parts.values(), *(self.leaves[i] for i in self.parts)]
        memories = {id(tensor.untyped_storage()) for tensor in places}
        given = {id(entry.source) for entry in self.written}
        for template in (self.result, *(t for _, t in (*self.effects, *self.gradients) if t)):
            for leaf in template.all_leaves():
                if isinstance(leaf, Argument) and leaf.place in self.parts:
                    return True
                if isinstance(leaf, View):
                    given.add(id(leaf.input.source))
        return not memories.isdisjoint(given)

    def _forget_own_leaves(self) -> None:
        """Leaves that the function made of others' memory, such as ``x.detach()``, are its own."""
        held = [*self.watch.tensors.values(), *self.leaves]
        held += self.optimizers.stepped_parameters()
        known = set(map(id, held)) | self.met
        for table in (self.capture.leaves, self.optimizers.gradients):
            for key in table.keys() - known:
                del table[key]

    def _known(self) -> dict[int, torch.Tensor]:
        known = self.watch.tensors | self.capture.leaves
        return known | {id(g.tensor): g.tensor for g in self.optimizers.gradients.values()}

    def _strays(self, accounted: list[Any]) -> list[Any]:
        """Storages made in the trace that live on in a place nobody watches."""

        def strays() -> list[Any]:
            known = set(map(id, accounted))
            return [memory for memory in self.capture.made() if id(memory) not in known]

        if strays():
            gc.collect()  # they may be held by cycles only
        return strays()

    def roll_back(self) -> None:
        """Undo everything."""
        self.capture.put_back()
        self.watch.stop()
        self.watch.undo()
        self.optimizers.restore_gradients()
        self.capture.roll_back()

    # --- afterwards -------------------------------------------------------------------------------

    def _hooks(self) -> list[Item]:
        """Where the hooks of parameters stand."""
        items = []
        for leaf in self.capture.leaves.values():
            for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                hooks = slot(leaf, name)
                items.append(Item("attr", leaf, name, hooks, f"a parameter's {name}"))
                if isinstance(hooks, dict):
                    contents = read_place("contents", hooks, "")
                    items.append(Item("contents", hooks, "", contents, f"a parameter's {name}"))
        return items

    def _is_input(self, tensor: torch.Tensor) -> bool:
        return self.capture.input_of(tensor.untyped_storage()) is not None

    def guards(self) -> Guards:
        """What the trace relied on."""
        items = [item for item in self.watch.items.values() if item.read]
        items += self.optimizers.items.values()
        items += self._hooks()
        counted = [i for i, t in self.effects if any(isinstance(n, Counted) for n in t.leaves)]
        items += [Item("number", i.owner, i.key, int, f"the class of {i.label}") for i in counted]
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
        irreplaceable += self.watch.cached.values()
        irreplaceable += [g.tensor for g, _ in self.gradients]
        templates = [self.result, *(template for _, template in self.effects)]
        fixed = [leaf.value for t in templates for leaf in t.all_leaves() if isinstance(leaf, Same)]
        return Guards(items, gradients, irreplaceable, fixed)
