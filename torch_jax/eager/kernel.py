"""The eager executor: one cached ``jax.jit`` call per operator.

A call collects the memories behind its tensors and a key of all that is static – shapes, dtypes,
geometry, static arguments – and looks up the compiled entry, which returns new arrays: one for each
new tensor, and one for each storage it writes. Numbers are inputs, and so is the start of a view in
its memory: all rows of a matrix are one key (within a trace of a graph, both are constants). At a
miss PyTorch's own meta function checks the arguments, and describes the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from torch_jax import config
from torch_jax._private import jax_core, pytorch
from torch_jax.core import absent, costs, errors, log, numbers, policies, progress, tracers
from torch_jax.core.active import ACTIVE, unrecorded
from torch_jax.core.node import Node, NotRecordable
from torch_jax.core.numbers import GivenNumber
from torch_jax.core.precision import with_dtype
from torch_jax.core.x64 import x64
from torch_jax.eager import bound, by_torch, checks, refusals, signature, variants
from torch_jax.eager.entry import Entry, build, by_parameter, template, wrap_output
from torch_jax.eager.given_numbers import integers_input, number_input
from torch_jax.eager.meta import Output, infer
from torch_jax.eager.on_host import OnHost
from torch_jax.eager.signature import DROP, GENERATOR, INTEGERS, NUMBER, NUMBERS, TENSOR, TENSORS
from torch_jax.memory import dtypes, generators, sharding, shared, storage, transfer, windows
from torch_jax.memory.storage import is_jax, memory_of, tensors_in
from torch_jax.ops.registry import Lowering

_create = pytorch.create_empty_tensor


# Called with the operator at every cache miss, before XLA compiles.
compile_listeners: list[Callable[[Any], Any]] = []


class Kernel:
    """An ATen overload with its lowering: :attr:`call` takes the dispatcher's arguments."""

    def __init__(self, op: Any, lowering: Lowering, sig: signature.Signature):
        self.op, self.lowering, self.signature = op, lowering, sig
        self._head = with_dtype if lowering.products else torch.get_default_dtype
        self._lists_written = by_torch.counted_lists(op, sig)
        self.cache: dict[tuple, Entry] = {}
        self.on_cpu: Callable[..., Any] | None = None  # PyTorch's kernel of the operator, if any
        self.call = self.served = self._make_call()  # by XLA; and the dispatcher's

    def _make_call(self) -> Callable[..., Any]:
        """Return the function for the dispatcher, as a closure over locals."""
        sig, random, chance = self.signature, self.lowering.random, self.lowering.drawn_if
        positional, by_name, writes = sig.positional, sig.by_name, sig.writes
        collect, collect_tensors, tensor = self._collect, self._collect_tensors, torch.Tensor
        launch, head = self._launch(), self._head
        # where conjugated views are resolved here: PyTorch does most, our operators theirs
        keys = ("Conjugate", "Negative") if self.op.namespace != "torch_jax" else ()
        sees_conj = any(pytorch.has_kernel(self.op.name(), key) for key in keys)
        # the place of a generator among positional arguments; past the end if keyword-only
        generator_at = [*positional, GENERATOR].index(GENERATOR)

        def call(*args: Any, **kwargs: Any) -> Any:
            if sees_conj and any(map(_is_lazy, args)):
                if writes:
                    return self._write_resolved(call, args, kwargs)
                args = tuple(map(_resolve, args))
            key: list[Any] = [head()]
            memories: list[Any] = []
            storages: list[Any] = []
            for value, kind in zip(args, positional):  # noqa: B905, strict= costs time here
                if kind == TENSOR and isinstance(value, tensor):
                    collect_tensors((value,), key, memories, storages)
                else:
                    collect(kind, value, key, memories, storages)
            for name, value in kwargs.items():
                key.append(name)
                collect(by_name[name], value, key, memories, storages)
            if random and "generator" not in kwargs and len(args) <= generator_at:
                if not chance or sig.named(args, kwargs).get(chance):
                    memories.append(generators.default_generator.draw())
                    storages.append(None)
            if not writes:
                return launch(tuple(key), memories, args, kwargs)
            memories, slots = _shared(memories, storages)
            if len(memories) < len(slots) and len(slots) - len(memories) > _repeated(storages):
                refusals.check_memory(self.op, args, kwargs)
            key.append(slots)
            return self._slowly(tuple(key), memories, args, kwargs, storages, slots)

        checked = checks.checked(self.op, self.lowering, call)

        def drawing(*args: Any, **kwargs: Any) -> Any:
            """Draw once also where a random operator runs amid a recording."""
            return by_torch.by_xla_or_at_once(self.op, self.served, checked, args, kwargs)

        found = drawing if random else checked
        return _like(self.op, found) if self.op._opname.endswith("_like") else found

    def _launch(self) -> Callable[..., Any]:
        """Return the function that runs calls of known keys, nearly all of them by a short way."""
        entries, slowly, record = self.cache, self._slowly, self._recorded

        def launch(signature: tuple, memories: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
            entry: Any = entries.get(signature)
            form, recorder = None if entry is None else entry.tensor, ACTIVE.recorder
            at_once = recorder is not None and recorder.recording.at_once
            if not form or at_once or ACTIVE.tracer is not None:
                return slowly(signature, memories, args, kwargs)
            try:
                if recorder is None:
                    entry.uses += 1
                    with x64():
                        array = entry.run.call(*memories)
                else:
                    found = record(entry, signature, memories, args, kwargs)
                    array = found[0] if type(found) is list else found  # a node, or it has run
            except tracers.TracedElsewhere as error:
                return self._again(error, args, kwargs)
            except Exception as error:
                if recorder is not None:
                    raise
                return self._failed(error, signature, memories, args, kwargs)
            tensor = _create(*form)
            tensor.untyped_storage().array = array
            return tensor

        return launch

    def _slowly(self, signature, memories, args, kwargs, storages=(), slots=None) -> Any:
        """Run a call that is recorded or traced, writes, or is the first of its kind."""
        recorder: Any = ACTIVE.recorder if ACTIVE.tracer is None else None
        records, entry = recorder is not None, self.cache.get(signature)
        if records and (recorder.recording.at_once or entry is None):
            # PyTorch's operators but draws, which have been made; our own run in recordings alone
            plain = self.op.namespace == "aten" and not self.lowering.random
            if recorder.passes(self.op, args, kwargs, is_new=entry is None and plain):
                return self._now(args, kwargs)
        run = self._recorded if records else self._run
        if entry is None:
            entry = self._compile(signature, args, kwargs, slots)
            run = run if records else progress.operator(self.op.name())(run)
        if records and entry.concrete:
            return self._at_once(args, kwargs)
        while True:
            try:
                arrays = run(entry, signature, memories, args, kwargs)
                if entry.simple:
                    return _wrapped(entry, arrays)
                return self._finish(entry, arrays, args, kwargs, storages, slots, memories)
            except tracers.TracedElsewhere as error:  # or another thread has written meanwhile
                if slots is None:
                    return self._again(error, args, kwargs)
                self._wait(error, args, kwargs)
                for held, slot in zip(storages, slots, strict=True):
                    if held is not None:  # key words stay: no draw is lost
                        memories[slot] = held.array

    def _failed(self, error: Exception, signature, memories, args, kwargs) -> Any:
        """Run a call that has raised by the short way once more, where that may help."""
        if tracers.is_traced_elsewhere(memories):
            return self._again(error, args, kwargs)
        if sharding.Use.begun or not jax_core.is_outside_traces():  # of a user's trace
            return self._slowly(signature, memories, args, kwargs)
        raise self._explained(error, args, kwargs) from error

    def _recorded(self, entry: Entry, signature: tuple, memories: Any, args, kwargs) -> Any:
        """Return an entry's results: nodes, where the call can be recorded."""
        try:
            arrays = list(ACTIVE.recorder.record(self.op, entry, memories))
            entry.uses += 1
            return arrays
        except NotRecordable as error:
            if absent.is_chosen():
                cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
                raise self._explained(cause, args, kwargs) from error
        return self._run(entry, signature, list(map(windows.operand, memories)), args, kwargs)

    def _at_once(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a call outside the recording, since shapes or errors depend on values."""
        if ACTIVE.observer is not None:
            ACTIVE.observer.looks()
        for tensor in tensors_in((args, kwargs)):
            if is_jax(tensor):
                memory_of(tensor)  # which is computed now
        if absent.is_chosen():
            raise absent.refusal(f"{errors.describe_call(self.op, args, kwargs)} needs values")
        return self._now(args, kwargs)

    def _now(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        with unrecorded():
            return self.served(*args, **kwargs)

    def _run(self, entry: Entry, signature: tuple, memories: list, args, kwargs) -> Any:
        entry.uses += 1
        try:
            run = entry.run.here
            if sharding.Use.begun:
                run = sharding.on_mesh(run, entry, memories)
            with x64():
                arrays = run(*memories)
        except Exception as error:
            if tracers.is_traced_elsewhere(memories):  # or a memory is still that of a recording
                raise tracers.TracedElsewhere from error
            bound.drop(self, signature)
            raise self._explained(error, args, kwargs) from error
        return arrays if entry.simple else self._verified(entry, arrays, args, kwargs)

    def _again(self, error: Exception, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call again when other threads have given memories back, unless that changes nothing."""
        self._wait(error, args, kwargs)
        return self.call(*args, **kwargs)

    def _wait(self, error: Exception, args: tuple, kwargs: dict[str, Any]) -> None:
        """Wait until no other thread has lent the tensors' memories to a program."""
        memories = [memory_of(t) for t in tensors_in((args, kwargs)) if is_jax(t)]
        if tracers.is_traced_elsewhere(memories):  # a tracer that has outlived its trace
            raise self._explained(error, args, kwargs) from error

    def _explained(self, error: Exception, args: tuple, kwargs: dict[str, Any]) -> Exception:
        """Return JAX's error as the one a PyTorch user understands."""
        if tracers.wants_a_value(error):
            return tracers.needs_values(self.op, args, kwargs, self.lowering.instead)
        if not self._is_ours():
            error.add_note(f"in {errors.describe_call(self.op, args, kwargs)}")
            raise error  # the error of a user's own function is kept
        return refusals.instead_of(error, self.op, args, kwargs)

    def _is_ours(self) -> bool:
        """Return whether the lowering is none of a user's."""
        return getattr(self.lowering.function, "__module__", "").startswith("torch_jax")

    def _write_resolved(self, call: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """Write to resolved copies of conjugated views, then from these to the views."""
        resolved = tuple(map(_resolve, args))
        call(*resolved, **kwargs)
        for name, old, new in zip(self.signature.names, args, resolved, strict=False):
            if name in self.signature.writes and old is not new:
                old.copy_(new)
        return self.signature.returned((), self.signature.named(args, kwargs))

    def _collect(self, kind, value, key, memories, storages) -> None:
        if kind == DROP:
            if isinstance(value, torch.device):
                errors.check_ordinal(value)
            return
        if value is None and kind != GENERATOR:
            key.append(None)
        elif kind == TENSOR or kind == NUMBER:
            if isinstance(value, torch.Tensor):
                self._collect_tensors((value,), key, memories, storages)
            else:
                is_exact = type(value) is int and abs(value) < 1 << 53
                if is_exact and not dtypes.FLOATS.isdisjoint(key[2:4]):
                    # the first operand is of floats: a schedule may begin at 0, or end at 1
                    value = float(value)
                number = number_input(value)
                key.append(float if type(number) is GivenNumber else type(value))
                memories.append(number)
                storages.append(None)
        elif kind == NUMBERS and _are_one(value):
            key.append(len(value))
            number = number_input(value[0])
            memories += [number] * len(value)
            storages += [_OneNumber(number)] * len(value)
        elif kind == TENSORS:
            key.append(len(value))
            self._collect_tensors(value, key, memories, storages)
        elif kind == NUMBERS:
            key.append(len(value))
            for item in value:
                self._collect(NUMBER, item, key, memories, storages)
        elif kind == GENERATOR:
            memories.append(generators.draw(value))
            storages.append(None)
        elif kind == INTEGERS and ACTIVE.tracer is None:
            key.append(type(value))
            memories.append(integers_input(value))
            storages.append(None)
        elif callable(kind) and not numbers.holds(kind, value):
            self._collect(NUMBER, value, key, memories, storages)
        else:
            if isinstance(value, torch.SymFloat):  # an observed number: a guard pins its value
                value = numbers.fixed(value)
            key += type(value), tuple(value) if isinstance(value, list) else value

    def _collect_tensors(self, tensors, key, memories, storages) -> None:
        """Add tensors, each with its place in a memory that it is not the whole of."""
        for tensor in tensors:
            if tensor is None:
                key.append(None)
                continue
            held: Any = tensor.untyped_storage()
            if (memory := getattr(held, "array", None)) is None:
                if tensor.device.type != "cpu" or (tensor.dim() and not self.lowering.host):
                    raise errors.same_device(self.op, tensor)
                held, memory = None, np.array(dtypes.numpy_of(tensor.contiguous()))
            elif type(memory) is Node and ACTIVE.recorder is None:
                memory = storage.memory_in(held)  # of a recording that has run
            memories.append(memory)
            storages.append(held)
            shape = tensor.shape
            key += shape, tensor.dtype
            if held is None:
                continue
            if shape == memory.shape and tensor.is_contiguous() and not tensor.storage_offset():
                if 1 in shape:  # a stride there is of any size, and results take after it
                    key.append(tensor.stride())
                continue
            if (starts := _place_of(tensor, memory, key)) is not None:
                memories.append(starts)
                storages.append(None)

    def _compile(self, key, args, kwargs, slots) -> Entry:
        for listener in compile_listeners:
            listener(self.op)
        args, kwargs = numbers.plain(args), numbers.plain(kwargs)
        if ACTIVE.recorder is None or not shared.SETTING.by_torch:  # otherwise it is only recorded
            log.compiles(self.op, args, kwargs)
        self._refuse_host(args, kwargs)
        if self._is_ours():
            refusals.check_dtypes(self.op, args, kwargs)
        meta = self.lowering.meta
        if callable(meta):
            meta = meta(**by_parameter(meta, template(self.signature, args, kwargs, slots)))
        is_variant = self.op._schema.is_mutable
        op = variants.overload(meta) if isinstance(meta, str) and not is_variant else self.op
        inferred = infer(op, args, kwargs) if meta else None
        leaves = jax.tree.leaves((args, inferred), is_leaf=lambda one: isinstance(one, Output))
        outputs = torch.Tensor | Output
        policies.note_doubles([one.dtype for one in leaves if isinstance(one, outputs)], self.op)
        entry = build(self.op, self.lowering, self.signature, key, args, kwargs, slots, inferred)
        if self.on_cpu is not None:
            entry.on_host = OnHost(entry, self.signature, self.on_cpu)
        bound.make_room(self, config.get("cache_size"))
        self.cache[key], entry.key = entry, key
        return entry

    def _refuse_host(self, args, kwargs) -> None:
        """Raise for CPU tensors with dimensions, or written, that the lowering does not take."""
        for name, value in self.signature.named(args, kwargs).items():
            for tensor in tensors_in(value) if name not in self.lowering.host else ():
                if not is_jax(tensor) and (tensor.dim() or name in self.signature.writes):
                    raise errors.same_device(self.op, tensor)

    def _verified(self, entry: Entry, arrays: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Return an entry's results without the flag of its check; raise where that is false."""
        if not entry.check:  # empty where the trace has shown that the check holds
            return arrays
        *values, ok = arrays[0] if entry.concrete else arrays
        message, kind = entry.check
        if tracers.is_traced(ok):  # no value yet: the tracer's owner raises after the run
            if ACTIVE.tracer is not None:
                ACTIVE.tracer.checks.append((ok, message, kind))
        else:
            try:
                with costs.measured("check", self.op.name()):
                    transfer.require(ok, message, kind)
            except kind as error:
                raise refusals.of_cpu(self.op, args, kwargs) or error from None
        return (values, arrays[1]) if entry.concrete else values

    def _finish(self, entry, arrays, args, kwargs, storages, slots, memories) -> Any:
        """Put written memories back, wrap new arrays, and order the returns."""
        outputs = entry.outputs
        if entry.concrete:
            arrays, outputs = arrays
        arrays = list(arrays)
        fresh = [wrap_output(spec, arrays) for spec in outputs]
        if entry.slots:
            owner = dict(zip(slots, storages, strict=True))
            written = [owner[slot] for slot in entry.slots]
            if not storage.put_back(written, [memories[slot] for slot in entry.slots], arrays):
                raise tracers.TracedElsewhere  # another thread has written or traced meanwhile
            for at in self._lists_written:
                by_torch.count_writes(args[at])
        return self.signature.returned(fresh, self.signature.named(args, kwargs))


def _like(op: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``zeros_like`` and similar: results are sharded as their model, or on a device named."""

    def like(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        is_here = device is None or torch.device(device).type == pytorch.DEVICE_TYPE
        if not (is_here and is_jax(args[0])):  # of a fake tensor PyTorch asks for a real one
            return op(torch.empty_like(args[0], device=device), *args[1:], **kwargs)
        made = call(*args, **kwargs)
        if sharding.Use.begun:
            sharding.follow(made, args[0])
        return made

    return like


def _wrapped(entry: Entry, arrays: Any) -> torch.Tensor:
    """Return the tensor of a simple entry, whose next call may take the short way."""
    output = entry.outputs[0]
    if isinstance(output, Output) and output.stride is None:
        entry.tensor = output.size, output.dtype
    return wrap_output(output, arrays if isinstance(arrays, list) else [arrays])  # nodes, or one


def _place_of(tensor: torch.Tensor, memory: Any, key: list[Any]) -> Any:
    """Add a view's place to the key, with its offset in a trace; return its start, if an input."""
    offset: Any = tensor.storage_offset()
    shape, stride = tensor.shape, tensor.stride()
    if ACTIVE.tracer is not None:
        key += stride, offset
        return None
    dtype = dtypes.to_jax(tensor.dtype)
    place = windows.place(memory.shape, memory.dtype, shape, stride, offset, dtype)
    key.append(place.number)
    if place.starts is None:
        return None
    return place.given() if ACTIVE.recorder is None else place


def _is_lazy(value: Any) -> bool:
    """Return whether a tensor's conjugate or negative bit is set."""
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())


def _resolve(value: Any) -> Any:
    return value.resolve_conj().resolve_neg() if _is_lazy(value) else value


class _OneNumber(NamedTuple):
    """A number in place of a storage: it replaces a list of equal ones, as one input.

    Optimizers give a list of the same number for all parameters. As that many inputs they would
    give each parameter's update a kernel of its own, to be compiled by itself.
    """

    array: Any


def _repeated(storages: list) -> int:
    numbers = [id(one) for one in storages if type(one) is _OneNumber]
    return len(numbers) - len(set(numbers))


def _are_one(values: Any) -> bool:
    """Return whether a list holds one float only, more than once; zeros may differ in sign."""
    if len(values) < 2 or type(values[0]) is not float or values.count(values[0]) != len(values):
        return False
    return set(map(type, values)) == {float} and bool(values[0] or len(set(map(str, values))) == 1)


def _shared(memories: list, storages: list) -> tuple[list, tuple[int, ...]]:
    """Return memories without repetition, and for each argument the index of its memory.

    Two views of one storage must share one memory when either is written.
    """
    known_by_id = [id(held) for held in storages if held is not None]
    if len(set(known_by_id)) == len(known_by_id):
        return memories, tuple(range(len(memories)))
    names = [~at if held is None else id(held) for at, held in enumerate(storages)]
    unique = dict(zip(names, memories, strict=True))
    slots = dict(zip(unique, range(len(unique)), strict=True))
    return list(unique.values()), tuple(slots[name] for name in names)
