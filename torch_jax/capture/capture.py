"""One trace of a whole Python function: what it read, what it wrote, what it left behind.

While the function runs, a dispatch mode sees every operator. A storage that is met for the first
time becomes an input of the program: its array is replaced by a tracer until the trace is over.
What is written is found afterwards by comparing. PyTorch's autograd runs as always, on this thread.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_jax._private import dynamo, jax_core, pytorch
from torch_jax.capture.host import known_values
from torch_jax.capture.host.cpu_tensors import Host, is_asked_back, is_host
from torch_jax.capture.host.tape import Tape
from torch_jax.capture.randomness import BodyDraws, Draws, keep_cpu_state, state_later
from torch_jax.compiler import jaxpr
from torch_jax.core import errors, tracers
from torch_jax.core.active import ACTIVE, Tracer
from torch_jax.core.tracers import is_traced
from torch_jax.core.x64 import x64
from torch_jax.dispatch.ladder import kernel_in_table
from torch_jax.memory import generators
from torch_jax.memory.storage import (
    give_back,
    is_jax_storage,
    memory_in,
    put_back,
    tensors_in,
)

_LIFT_FRESH = torch.ops.aten.lift_fresh.default


class Input:
    """An input of the program.

    ``kind`` says where a call finds it: ``storage`` (``source`` is the storage), ``number`` or
    ``host`` (a slot of the tape), ``words`` (a generator), ``gradient`` (of a result, by position).
    ``index`` is its position among the inputs.
    """

    def __init__(
        self, kind: str, source: Any, aval: Any, index: int, array: Any = None, line: str = ""
    ):
        self.kind, self.source, self.aval, self.index = kind, source, aval, index
        self.array, self.line = array, line  # of a storage: its array before, its first reader
        self.tracer: Any = None


class Capture(Tracer):
    """The state of one trace."""

    is_whole_function = True

    def __init__(self) -> None:
        self.trace: Any = None  # JAX's own object for the trace that is under way
        self.inputs: list[Input] = []
        self.literals: dict[tuple, int] = {}
        self.tape = Tape()
        self.host = Host(self, self.tape)
        # the optimizers and the watch of this trace are set by Tracing, which makes all three
        self.optimizers: Any = None
        self.watch: Any = None
        self.given: list[Any] = []  # the arguments
        # tensors that were there before, with what autograd knew of them when they were met
        self.histories: dict[int, tuple[torch.Tensor, Any, bool]] = {}
        self.versions: dict[int, tuple[torch.Tensor, int]] = {}  # tensors, and versions of before
        self.leaves: dict[int, torch.Tensor] = {}  # tensors that gradients accumulate in
        self.draws: dict[int, Draws] = {}
        self._states: dict[int, tuple[torch.Tensor, int, Draws | None]] = {}
        self.checks: list[tuple[Any, str, type[Exception]]] = []
        self.restore: list[Callable[[], None]] = []  # called when the trace is over
        self.undo: list[Callable[[], Any]] = [keep_cpu_state()]  # called where the trace fails
        self.failure: Exception | None = None  # raised in the function, which may have caught it
        self.is_over = False  # then the storages hold arrays again
        self.processes: Any = None  # that run the program together, where it has collectives
        self.last_collective: list[Any] = []
        self.of_engine: list[torch.Tensor] = []  # first met by C++ code in a backward pass
        self.went_back = False  # whether the function ran a backward pass itself
        self._storages: dict[int, Input] = {}
        self._numbers: dict[int, Any] = {}
        self._constants: dict[int, weakref.ref] = {}  # storages whose data come from Python
        self._new: dict[int, weakref.ref] = {}
        self._mode = _Mode(self)

    # --- inputs -----------------------------------------------------------------------------------

    def new_input(self, kind: str, source: Any, shape, dtype, weak: bool = False, **more) -> Any:
        """A new input of the program, as a tracer."""
        with x64():  # without which JAX would make float32 of a float64
            aval = jax.core.ShapedArray(shape, jnp.dtype(dtype), weak_type=weak)
        entry = Input(kind, source, aval, len(self.inputs), **more)
        entry.tracer = jaxpr.new_input(self.trace, entry.index, aval)
        self.inputs.append(entry)
        return entry.tracer

    def drop_inputs(self, first: int, count: int) -> None:
        """Forget some inputs, those of a part that is cut off the program; later ones move up."""
        del self.inputs[first : first + count]
        for entry in self.inputs[first:]:
            entry.index -= count

    def lift(self, storage: Any) -> None:
        """Make what a storage holds an input, unless it is one already or comes of the trace."""
        array = memory_in(storage)
        if is_traced(array) or self._is_constant(storage):
            return
        form = array.shape, array.dtype
        tracer = self.new_input("storage", storage, *form, array=array, line=tracers.user_line())
        entry = self._storages[id(storage)] = self.inputs[-1]
        while not put_back((storage,), (entry.array,), (tracer,)):  # another thread wrote meanwhile
            entry.array = memory_in(storage)

    def _is_constant(self, storage: Any) -> bool:
        known = self._constants.get(id(storage))
        return known is not None and known() is storage

    def see(self, tensor: torch.Tensor) -> None:
        """Note a device tensor that an operator takes."""
        errors.refuse_sparse(tensor)
        storage = tensor.untyped_storage()
        if is_jax_storage(storage):
            is_new = id(storage) not in self._storages
            self.lift(storage)
            if id(storage) in self._storages:
                if is_new and self.went_back and _is_asked_by_engine():
                    self.of_engine.append(tensor)
                self.note_version(tensor)
            if id(storage) in self._storages and id(tensor) not in self.histories:
                self.histories[id(tensor)] = tensor, tensor.grad_fn, tensor.requires_grad
            if tensor.requires_grad and tensor.is_leaf and id(storage) in self._storages:
                self.leaves.setdefault(id(tensor), tensor)
                self.optimizers.note_gradient(tensor)

    def note_version(self, tensor: torch.Tensor) -> None:
        """Note how often a tensor had been written when it was met."""
        if id(tensor) not in self.versions:
            self.versions[id(tensor)] = tensor, _version(tensor)

    def raised_versions(self) -> dict[int, int]:
        """How many writes of the trace each tensor has counted, by its id."""
        raised = {key: _version(one) - before for key, (one, before) in self.versions.items()}
        raised = {key: times for key, times in raised.items() if times}
        self.versions = {key: self.versions[key] for key in raised}  # to hold nothing else
        return raised

    def number(self, slot: int) -> Any:
        """The number in a slot of the tape, as a traced scalar."""
        if slot not in self._numbers:
            self._numbers[slot] = self.new_input("number", slot, (), np.float64, weak=True)
        return self._numbers[slot]

    # --- operators --------------------------------------------------------------------------------

    def operator(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run an operator that the traced function called."""
        tensors = list(tensors_in((args, kwargs)))
        if any(map(is_host, tensors)) or (not tensors and _is_host_factory(kwargs)):
            return self.host.operator(func, args, kwargs)
        if is_asked_back(func, kwargs):
            known = known_values.of(self, args[0])
            if known is not None:
                return self.host.operator(func, (known,), kwargs)
        return self.on_device(func, args, kwargs)

    def on_device(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run an operator on device tensors, whose storages become inputs."""
        if func is _LIFT_FRESH:  # torch.tensor(..., device="jax"): the data come from Python
            storage = args[0].untyped_storage()
            self._constants[id(storage)] = weakref.ref(storage)
        tensors = list(tensors_in((args, kwargs)))
        for tensor in tensors:
            self.see(tensor)
        schema = getattr(func, "_schema", None)  # operators of higher order have none
        if schema is not None and schema.is_mutable and torch.is_grad_enabled():
            self._refuse_new_history(func, tensors)
        result = func(*args, **kwargs)
        for tensor in tensors_in(result):
            errors.refuse_sparse(tensor)
            storage = tensor.untyped_storage()
            if is_jax_storage(storage):
                self._new[id(storage)] = weakref.ref(storage)
        return result

    def _refuse_new_history(self, func: Any, tensors: list[torch.Tensor]) -> None:
        """An operator writes: not to what was there before, if autograd takes note of it.

        Autograd would do so after the operator, when nothing could undo it.
        """
        wanted = any(tensor.requires_grad for tensor in tensors)
        if wanted and id(tensors[0].untyped_storage()) in self._storages:
            raise tracers.NotTraceableError(
                f"under torch_jax.jit this Python has to run at each call: {func} writes in place "
                f"to a tensor of which gradients are wanted ({tracers.user_line()})"
            )

    def goes_back(self) -> None:
        """A backward pass is about to run: not through graphs that were there before."""
        given = (*self.given, *self.watch.notes.tensors.values())
        read = [tensor for tensor in given if id(tensor) in self.histories]
        if not self.went_back and any(tensor.grad_fn is not None for tensor in read):
            raise tracers.NotTraceableError(
                "under torch_jax.jit this Python has to run at each call: it runs a backward pass "
                f"where tensors have a history from before ({tracers.user_line()})"
            )

    def run_together(self, processes: Any) -> None:
        """The program has a collective of these processes: they run all of it together."""
        if self.processes not in (None, processes):
            raise tracers.NotTraceableError("collectives of two groups are no part of one program")
        self.processes = processes

    def takes_host(self, func: Any) -> bool:
        """Whether an operator takes CPU tensors, as indices are taken."""
        kernel = kernel_in_table(func)
        return kernel is not None and bool(kernel.lowering.host)

    # --- randomness -------------------------------------------------------------------------------

    def _draws_of(self, generator: Any) -> Draws:
        draws = self.draws.get(id(generator))
        if draws is None:
            tracer = self.new_input("words", generator, (4,), np.uint32)
            draws = self.draws[id(generator)] = Draws(generator, tracer)
        return draws

    def draw(self, generator: Any) -> Any:
        """The key words of a random operator: those of the call's own generator state."""
        origin = self._draws_of(generator).origin
        seed, offset = generator.advance(1)
        if origin is None:
            return generators.words(seed, offset)
        with x64():
            return generators.words_later(origin.tracer, offset - origin.offset)

    def body_draws(self) -> BodyDraws:
        """The default generator's draws in a loop's body."""
        return BodyDraws(self, generators.default_generator)

    def seeded(self, generator: Any) -> None:
        """The function seeds a generator: its draws are the same at each call from here on."""
        self._draws_of(generator).origin = None

    def looked_at_seed(self, generator: Any) -> None:
        """Python looks at a seed: later calls must find it again."""
        origin = self._draws_of(generator).origin
        if origin is not None:
            read = origin.generator.initial_seed
            self.tape.expect("initial_seed", self.tape.record(read, (), generator.where()[0]))

    def state_of(self, generator: Any) -> torch.Tensor:
        """The state of a generator, which each call makes anew out of its own."""
        origin = self._draws_of(generator).origin
        seed, offset = generator.where()
        read: Any = functools.partial(generators.as_state, seed, offset)
        if origin is not None:
            read = functools.partial(state_later, origin.generator, offset - origin.offset)
        state = generators.as_state(seed, offset)
        self.host.makes(state, self.tape.record(read, (), state))
        self._states[id(state)] = state, _version(state), origin
        return state

    def put_to(self, generator: Any, state: torch.Tensor) -> None:
        """A generator takes a state over: one of this call, or one whose bytes are fixed."""
        draws = self._draws_of(generator)
        _, version, origin = self._states.get(id(state), (None, -1, None))
        if version != _version(state):
            self.host.fix(state)
            origin = None
        draws.origin = origin

    def host_words(self, generator: torch.Generator) -> Any:
        """Key words seeded by a CPU generator, drawn anew at each call."""
        slot = self.tape.constant(generator)
        words = generators.words_from(generator)
        slot = self.tape.record(generators.words_from, (slot,), words, needed=True)
        return self.new_input("host", slot, words.shape, words.dtype)

    # --- results ----------------------------------------------------------------------------------

    def written(self) -> list[Input]:
        """The inputs whose storages hold something else now."""
        return [i for i in self.inputs if i.kind == "storage" and i.source.array is not i.tracer]

    def new_storages(self) -> list[Any]:
        """The storages that were made in the trace and are still there."""
        known = self._storages
        alive = (ref() for ref in self._new.values())
        return [s for s in alive if s is not None and is_traced(s.array) and id(s) not in known]

    def storages(self) -> list[Any]:
        """The storages that the trace has met or made, and that are still there."""
        met = [entry.source for entry in self.inputs if entry.kind == "storage"]
        return met + self.new_storages()

    def input_of(self, storage: Any) -> Input | None:
        """The input that a storage became."""
        return self._storages.get(id(storage))

    def put_back(self) -> None:
        """Give every storage that became an input its array again.

        Only the first time: afterwards other threads may write into these storages.
        """
        lifted = [] if self.is_over else [i for i in self.inputs if i.kind == "storage"]
        lifted = [entry for entry in lifted if is_traced(entry.source.array)]
        give_back([entry.source for entry in lifted], [entry.array for entry in lifted])
        self.is_over = True
        for restore in reversed(self.restore):
            restore()
        self.restore.clear()

    def roll_back(self) -> None:
        """Undo what the trace did on the host."""
        written = [
            (tensor, before)
            for tensor, before in self.versions.values()
            if not tensor.is_inference() and tensor._version != before
        ]
        pytorch.set_versions([t for t, _ in written], [version for _, version in written])
        for undo in reversed(self.undo):
            undo()
        for draws in self.draws.values():
            draws.generator.put(draws.seed, draws.offset)

    def needs_value(self, array: Any) -> Exception:
        """The error for Python asking for a value that only the device knows."""
        return tracers.needs_value_on_host(array)

    # --- being in force ---------------------------------------------------------------------------

    @contextmanager
    def active(self) -> Iterator[None]:
        """Trace on this thread; what ``torch.compile`` would compile is traced as it is written."""
        self.trace = jaxpr.current_trace()
        ACTIVE.tracer = self
        no_dynamo = dynamo.dynamo_stance("force_eager")
        try:
            with torch.autograd.set_multithreading_enabled(False), no_dynamo, self._mode:
                yield
        finally:
            ACTIVE.tracer = None

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Run Python that is none of the user's, such as PyTorch's own compiler."""
        with unwatched(), _no_modes():
            yield

    @contextmanager
    def watching_inside(self) -> Iterator[None]:
        """See operators again, within an operator that calls Python functions."""
        with self._mode:
            yield


@contextmanager
def paused() -> Iterator[None]:
    """Run outside of the trace that is under way: eagerly, unseen, with real values."""
    capture, ACTIVE.tracer = ACTIVE.tracer, None
    try:
        with unwatched(), jax_core.outside_of_traces(), _no_modes():
            yield
    finally:
        ACTIVE.tracer = capture


@contextmanager
def unwatched() -> Iterator[None]:
    """Run Python that is none of the user's, without the profile function that watches it.

    ``sys.setprofile`` is how the trace learns which Python code runs; of our own code and of
    PyTorch's internals nothing should be learnt, and each of their calls would cost an event.
    """
    profiler = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        pytorch.set_profiler(profiler)


class _Mode(TorchDispatchMode):
    """Shows every operator to the capture."""

    supports_higher_order_operators = True

    def __init__(self, capture: Capture):
        super().__init__()
        self.capture = capture

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To be skipped Dynamo would be imported, in seconds; while tracing it does nothing."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with unwatched():
            return self.capture.operator(func, args, kwargs or {})


def _is_asked_by_engine() -> bool:
    """Whether the operator that is looked at was called by C++ code of a backward pass."""
    frame = sys._getframe(1)
    while frame.f_code is not _Mode.__torch_dispatch__.__code__:
        if frame.f_back is None:
            return False
        frame = frame.f_back
    asked = frame.f_back
    return asked is not None and asked.f_code.co_name in ("_engine_run_backward", "run_backward")


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor has been written, as far as that is counted."""
    return 0 if tensor.is_inference() else tensor._version


def _is_host_factory(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is None or device.type == "cpu"


def _no_modes() -> Any:
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
