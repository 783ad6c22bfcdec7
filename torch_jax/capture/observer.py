"""One real call of a function whose Python later calls skip: what it reads, writes and leaves.

The call is recorded (:mod:`torch_jax.recorded`), so its Python has all of its effects. Meanwhile a
dispatch mode sees each operator, and so finds for each array that the graph is given the tensor in
which a later call finds it.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from torch_jax._private import dynamo, pytorch
from torch_jax.capture.cpu_tensors import ITEM, Host, goes_to, is_host, looks_at
from torch_jax.capture.draws import Draws
from torch_jax.capture.optimizers import Optimizers
from torch_jax.capture.storages import OfResult, Storages, outline
from torch_jax.capture.tape import Tape
from torch_jax.core import autograd_nodes, errors, policies, tracers
from torch_jax.core.active import ACTIVE
from torch_jax.core.collection import no_collection
from torch_jax.core.node import Node
from torch_jax.dispatch.call_jax import jax_function
from torch_jax.memory import storage
from torch_jax.memory.storage import is_jax, is_jax_storage, is_jax_tensor, tensors_in
from torch_jax.memory.transfer import require
from torch_jax.ops.on_host import LISTENERS
from torch_jax.recorded.path import State
from torch_jax.recorded.program import SILENT, Listener

_TO_HOST = frozenset((torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default))


class Graph(NamedTuple):
    """The graph that a call has recorded."""

    state: State  # its operators
    numbers: list[Any]  # Python's, in order
    sources: list[Any]  # where each array that it is given comes from
    program: Any  # compiled for it; None where its operators ran one by one


class Refusal(NamedTuple):
    """Why later calls cannot skip the Python; ``is_of_first``: perhaps the first call's alone."""

    why: str
    is_of_first: bool = False


OF_OTHERS = Refusal("another thread read or wrote its tensors while it ran")
"""The refusal of a call that shows nothing of what a later one will do."""


class Observer(Listener):
    """The operators, reads and effects of one call."""

    takes_checks = needs_program = True

    def __init__(self, leaves: list[Any], own: dict[int, torch.Tensor], history: Listener = SILENT):
        """Take the arguments; and tensors over the own memories of those that see copies.

        ``history`` says how the programs are made.
        """
        self.leaves = leaves  # the arguments
        self._thread = threading.get_ident()
        self.history, self.options = history, history.options
        self._places = {id(leaf): at for at, leaf in enumerate(leaves)}
        self.storages = Storages(leaves, own)  # that it meets and makes
        # older tensors, their outlines, and the nodes behind them, before the call, by id
        self.outlines: dict[int, tuple[torch.Tensor, tuple, Any]] = {}
        self._returned: set[int] = set()  # ids of the tensors that the call's functions return
        for at, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and at not in own:
                self.remember(leaf)
        self.tape = Tape()  # the work of the host at each call: numbers of optimizers, schedulers
        self.host = Host(self)
        self.draws = Draws(self)
        self.optimizers = Optimizers(self)
        self.wanted: dict[int, torch.Tensor] = {}  # older ones that may want gradients, by id
        self.modules: dict[int, torch.nn.Module] = {}  # that were called, by id
        self.graphs: list[Graph] = []  # that were recorded and run
        self.outputs: list[Any] = []  # arrays that the program of the last one has given
        self.proved: list[Any] = []  # checks that hold for the arrays of the call
        # truth values of the graph, each with the error to raise where it is false
        self.checks: list[tuple[Any, str, type[Exception]]] = []
        self.let_go: list[torch.Tensor] = []  # whose memories are not read after the call
        self.raised: RuntimeError | None = None  # by the latest operator that has failed
        self.went_back = False  # whether the function ran a backward pass
        self.is_over = False  # whether the function has returned
        self.refusal: Refusal | None = None  # why later calls cannot skip the Python
        self.makes_state = False  # whether an optimizer makes its state out of gradients
        with torch.inference_mode(False), torch.enable_grad():
            new: Any = torch.empty(0, requires_grad=True).clone().grad_fn
            self._last_node = new._sequence_nr()  # nodes that are made later have higher numbers

    # --- being in force ---------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See the operators of this thread, and hear of optimizers, generators and modules."""
        before, ACTIVE.observer = ACTIVE.observer, self
        hook = register_module_forward_pre_hook(self._calls)
        try:
            with no_collection(), dynamo.dynamo_stance("force_eager"), _Mode(self), _Reads():
                yield
        finally:
            hook.remove()
            self.optimizers.leave_all()
            ACTIVE.observer = before

    def _calls(self, module: torch.nn.Module, _args: Any) -> None:
        if ACTIVE.observer is self:
            self.modules[id(module)] = module

    def refuse(self, why: str, is_of_first: bool = False) -> None:
        """Note why later calls cannot skip the Python: the first reason counts."""
        self.refusal = self.refusal or Refusal(why, is_of_first)

    def disturb(self) -> None:
        """Note that another thread works on what the call reads or writes."""
        self.refusal = self.refusal or OF_OTHERS

    def writes(self, storages: Any, before: Any, is_done: bool) -> None:
        """Note a write to storages, which is not done where they hold no longer what was read."""
        pairs = zip(storages, before, strict=True)
        met = (old for memory, old in pairs if self.storages.place_of(memory) is not None)
        if not is_done or any(map(self.storages.is_of_others, met)):
            self.disturb()

    def is_disturbed(self) -> bool:
        """Return whether another thread is seen to work on what the call reads or writes."""
        if any(self.storages.is_of_others(one.storage.array) for one in self.storages.met):
            self.disturb()
        return self.refusal is OF_OTHERS

    def looks(self) -> None:
        """Note that an operator decides by values, as indexing with a mask does."""
        self.refuse(f"an operator looks at a value ({tracers.user_line()})")

    def draws_on_host(self) -> None:
        """Note a draw that later calls would not make."""
        self.refuse(f"it draws from a generator of the CPU ({tracers.user_line()})")

    # --- operators --------------------------------------------------------------------------------

    def operator(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        tensors = list(tensors_in((args, kwargs)))
        if _brings_to_host(func, args, kwargs, tensors):
            raise looks_at(args[-1] if func is not ITEM else args[0])
        makes_on_host = kwargs.get("device") is None or goes_to(kwargs, "cpu")
        if any(map(is_host, tensors)) or (not tensors and makes_on_host):
            return self.host.operator(func, args, kwargs)
        return self.on_device(func, args, kwargs)

    def on_device(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        for tensor in tensors_in((args, kwargs)):
            self.see(tensor)
        result = func(*args, **kwargs)
        for tensor in tensors_in(result):
            self.storages.makes(tensor)
        return result

    def see(self, tensor: torch.Tensor) -> None:
        """Note a device tensor that an operator takes."""
        errors.refuse_sparse(tensor)
        memory: Any = tensor.untyped_storage()
        if not is_jax_storage(memory) or self.storages.is_made(memory):
            return
        if self.storages.meet(memory, tensor):
            self.remember(tensor)
        elif self.storages.is_of_others(memory.array):
            self.disturb()
        wants = self.history.is_differentiable and autograd_nodes.may_have_one(tensor)
        if wants and not self._has_history(tensor):
            self.wanted[id(tensor)] = tensor
            if tensor.is_leaf:
                self.optimizers.note_gradient(tensor, is_asked=False)

    def remember(self, tensor: torch.Tensor) -> None:
        """Note what an older tensor is, of which the call may change more than the elements."""
        self.outlines.setdefault(id(tensor), (tensor, outline(tensor), tensor.grad_fn))

    def may_change(self, tensor: torch.Tensor) -> None:
        """Note a tensor that the call changes by no operator, if it is older than the call."""
        if self.is_older(tensor):
            self.remember(tensor)

    def is_older(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor object is older than the call."""
        is_made = self.storages.is_made(tensor.untyped_storage()) or self._has_history(tensor)
        return not is_made and id(tensor) not in self._returned

    def _has_history(self, tensor: torch.Tensor) -> bool:
        """Return whether the call has computed a tensor that wants gradients."""
        node: Any = tensor.grad_fn if autograd_nodes.may_have_one(tensor) else None
        return node is not None and node._sequence_nr() > self._last_node

    def returns(self, result: Any, args: tuple) -> None:
        """Note the tensors that a function makes, other than those that it was given."""
        self._returned.update({id(t) for t in tensors_in(result)} - set(map(id, args)))

    def owner(self, value: Any) -> Any:
        """Return the place of a value among the arguments, or itself where it is none of them."""
        return self._places.get(id(value), value)

    def takes_over(self, tensor: torch.Tensor) -> None:
        """Take a tensor that the call has made for an older one: the state of an optimizer."""
        memory: Any = tensor.untyped_storage()
        if type(memory.array) is Node:
            self.makes_state = True  # later calls find it, so that they differ from this one
        else:
            self.storages.disown(memory)

    # --- a recorder's listener --------------------------------------------------------------------

    def before(self, state: State, numbers: list[Any], arrays: list[Any]) -> None:
        if not self.is_over:
            if threading.get_ident() != self._thread:
                self.disturb()
            self.refuse(f"a value is looked at while it runs ({tracers.user_line()})")
        sources = list(map(self.storages.source, arrays))
        self.graphs.append(Graph(state, list(numbers), sources, None))
        for one in self.storages.met:
            one.held = None

    def after(self, state: State, nodes: list[Node], program: Any) -> None:
        for at, node in enumerate(nodes):
            if (array := getattr(node, "array", None)) is not None:
                self.storages.comes_from(array, OfResult(at))
        self.graphs[-1] = self.graphs[-1]._replace(program=program)
        self.outputs = [nodes[at].array for at in program.outputs] if program is not None else []

    def check(self, flag: Node, message: str, kind: type[Exception]) -> None:
        """Note a truth value that is false where an index is out of range."""
        self.checks.append((flag, message, kind))

    def proves(self, check: Any, arrays: list[Any], integers: Any) -> bool | None:
        holds = super().proves(check, arrays, integers)
        self.proved += [(check, integers)] if holds else []
        return holds

    def may_take(self, arrays: list[Any], dead: frozenset[int]) -> frozenset[int]:
        """Return which arrays a program may write over, beside dead ones those of ``let_go``."""
        met = (self.storages.place_of(tensor.untyped_storage()) for tensor in self.let_go)
        gone = {id(self.storages.met[at].storage.array) for at in met if at is not None}
        free = dead | {at for at, array in enumerate(arrays) if id(array) in gone}
        return self.history.may_take(arrays, free)

    # --- the end of the call ----------------------------------------------------------------------

    def copy_what_it_hands_on(self) -> None:
        """Have the program copy arrays that two storages share: a later call finds other arrays."""
        for memory, array in self.storages.handed_on():
            with pytorch.no_dispatch_modes():  # which would take it for a tensor of before
                whole = storage.wrap(array)
                copy = torch.ops.torch_jax.copy(whole, whole.dtype)
            storage.put_back((memory,), (array,), (storage.held_by(copy),))

    def keep_out_what_is_wrong(self) -> None:
        """Undo writes where an index was out of range, as the CPU raises before it writes."""
        if not any(policies.waits_for_checks(kind) for _, _, kind in self.checks):
            return
        flags = [storage.wrap(flag, torch.bool) for flag, _, _ in self.checks]
        for memory, old in ((one.storage, one.old()) for one in self.storages.met):
            new = memory.array
            if old is new or old is None:  # an array of before a graph that has run is gone
                continue
            if (old.shape, old.dtype) == (new.shape, new.dtype):
                with pytorch.no_dispatch_modes():  # which would take them for tensors of before
                    kept = _where(flags, storage.wrap(new), storage.wrap(old))
                storage.put_back((memory,), (new,), (storage.held_by(kept),))

    def forget_what_nobody_has(self) -> None:
        """Forget leaves that only ``gradients``, ``wanted`` and ``met`` hold, and not the user."""
        gradients = self.optimizers.gradients
        for key, known in list(gradients.items()):
            at = self.storages.place_of(known.tensor.untyped_storage())
            is_met = at is not None and self.storages.met[at].tensor is known.tensor
            known_by = (key in self.wanted) + (key in self.outlines) + is_met
            if sys.getrefcount(known.tensor) <= 2 + known_by:
                del gradients[key]
                self.wanted.pop(key, None)


def raise_failed_checks(checks: Iterable[tuple[Any, str, type[Exception]]], where: str) -> None:
    """Raise what an operator would have raised, had it been able to look at these truth values."""
    for flag, message, kind in checks:
        require(flag, f"{message} (in {where})", kind)


@jax_function
def _where(flags: list[jax.Array], new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(jnp.all(jnp.stack(flags)), new, old)


LISTENERS.append(lambda: ACTIVE.observer and ACTIVE.observer.looks())


class _Mode(pytorch.OperatorMode):
    """Shows every operator to the observer."""

    def __init__(self, observer: Observer):
        super().__init__()
        self.observer = observer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self.observer.operator(func, args, kwargs or {})
        except RuntimeError as error:
            self.observer.raised = copy.copy(error)  # without the frames
            raise


class _Reads(TorchFunctionMode):
    """Notes whose gradients are read: later calls find others there. And what changes otherwise."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        observer = ACTIVE.observer
        with pytorch.without_functions_of_subclasses():  # a class may refuse questions, or count
            if getattr(func, "__self__", None) is torch.Tensor.grad and is_jax(args[0]):
                if args[0].requires_grad and args[0].is_leaf:
                    observer.optimizers.note_gradient(args[0])
            elif func.__name__ in _CHANGES and is_jax_tensor(args[0]):
                observer.may_change(args[0])
        result = func(*args, **(kwargs or {}))
        if not torch.compiler.is_dynamo_compiling():
            observer.returns(result, args)
        return result


# methods that change more of a tensor than elements by no operator, and setters of attributes
_CHANGES = frozenset(
    "__set__ requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook".split()
)


def _brings_to_host(func: Callable, args: tuple, kwargs: dict, tensors: list) -> bool:
    """Return whether an operator brings a value of the device to the host."""
    if not any(map(is_jax, tensors)):
        return False
    return func is ITEM or (func in _TO_HOST and (goes_to(kwargs, "cpu") or is_host(args[0])))
