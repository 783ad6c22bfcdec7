"""Sizes that grow by one from call to call are inputs of one program for many of them.

A loop that appends a token at each step calls its operators with ever new shapes. When an operator
has met three sizes in a row, it is compiled once for the next power of two: its operands are read
as if they were so long, by the sizes, strides and offset that the program is given. Of what it
computes the part that counts is written to the front of an array of few possible lengths, and the
host takes it from there, so only the CPU has such programs.

Which operators may be run so is said in :mod:`torch_jax.ops.padded`.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_jax._private import jax_core
from torch_jax.compiler.tiers import Tiered
from torch_jax.core import policies
from torch_jax.core.active import ACTIVE
from torch_jax.core.x64 import x64
from torch_jax.eager import entry as entries
from torch_jax.eager.meta import Output
from torch_jax.eager.signature import NUMBER, NUMBERS, TENSOR, TENSORS
from torch_jax.memory import dtypes, generators, geometry, sharding, storage, transfer, windows
from torch_jax.ops import promotion
from torch_jax.ops.buckets import length_for
from torch_jax.ops.padded import ALONG, FILLS, IDEMPOTENT, OWN, Operand
from torch_jax.ops.precision import precisions_are

_RECENT = 32  # forms of calls that are remembered, to find a step in
_MOST_PATTERNS = 256  # of one operator
# A shared program takes some 20 ns for each element, most of them to find where it lies. It is not
# worth it for so many elements; an entry that has run so many compiles a program of its own.
_MOST_ELEMENTS = 1 << 19
_WORTH = 1 << 23
_LEAST_ELEMENTS = 1 << 12
_SMALL = 1 << 16  # bytes: made longer on the host, where XLA would compile a program for the length


class Growth(NamedTuple):
    """Calls of one operator that differ in sizes that grow.

    Attributes:
      pattern: what they have in common.
      dims: which dims of which operands grow.
      sizes: those of the operands; where a dim grows, of one call.
    """

    pattern: tuple
    dims: frozenset[tuple[int, int]]
    sizes: tuple[tuple[int, ...], ...]

    def has(self, sizes: tuple[tuple[int, ...], ...]) -> bool:
        """Whether a call of these sizes is one of them."""
        return all(
            (n > 1 and size[d] > 1) if (i, d) in self.dims else n == size[d]
            for i, (size, mine) in enumerate(zip(sizes, self.sizes, strict=True))
            for d, n in enumerate(mine)
        )


class History:
    """The calls of one operator that nothing was compiled for, when they came."""

    def __init__(self) -> None:
        self._recent: dict[tuple, deque[tuple]] = {}
        self._known: dict[tuple, list[Growth]] = {}
        # which entries share; kept by these
        self.programs: weakref.WeakValueDictionary[tuple, _Program] = weakref.WeakValueDictionary()

    def forget(self) -> None:
        """No call has been seen."""
        self._recent.clear()
        self._known.clear()

    def growth(self, kernel: Any, args: tuple, kwargs: dict[str, Any]) -> Growth | None:
        """What a call that needs an entry has in common with others before it, if they grow."""
        if not _applies(kernel):
            return None
        operands = _operands(kernel.signature, args, kwargs)
        if operands is None or not operands[0]:
            return None
        tensors, pattern = operands
        sizes = tuple(tuple(t.shape) for t in tensors)
        for known in self._known.get(pattern, ()):
            if known.has(sizes):
                return known
        return self._found(pattern, tensors, sizes)

    def _found(self, pattern: tuple, tensors: list, sizes: tuple) -> Growth | None:
        if len(self._recent) >= _MOST_PATTERNS:  # a program of ever new calls must not grow this
            self._recent.clear()
            self._known.clear()
        recent = self._recent.setdefault(pattern, deque(maxlen=_RECENT))
        form = tuple(
            number
            for size, t in zip(sizes, tensors, strict=True)
            for number in (*size, *t.stride())
        )
        step = _step(form, recent)
        recent.append(form)
        if step is None:
            return None
        steps = iter(step)
        dims = set()
        for i, size in enumerate(sizes):
            dims |= {(i, d) for d, grows in enumerate(itertools.islice(steps, len(size))) if grows}
            deque(itertools.islice(steps, len(size)), maxlen=0)  # strides
        growth = Growth(pattern, frozenset(dims), sizes)
        self._known.setdefault(pattern, []).append(growth)
        return growth if growth.has(sizes) else None


def _step(form: tuple, recent: deque[tuple]) -> tuple | None:
    """By how much a call's numbers have grown twice in a row, some of them by one."""
    for before in tuple(recent):  # other threads append to it meanwhile
        step = tuple(map(int.__sub__, form, before))
        if 1 in step and min(step) >= 0 and tuple(map(int.__sub__, before, step)) in recent:
            return step
    return None


def _applies(kernel: Any) -> bool:
    lowering = kernel.lowering
    if ACTIVE.tracer is not None or ACTIVE.recorder is not None:
        return False
    if not policies.on_cpu():  # elsewhere the host does not take parts of arrays for nothing
        return False
    if kernel.signature.writes or any(kernel.signature.lists) or not jax_core.is_outside_traces():
        return False
    if lowering.name in OWN:
        return True
    unlike = lowering.concrete or lowering.random or lowering.contiguous or lowering.strided
    if unlike:
        return False
    return lowering.name in IDEMPOTENT or lowering.name in FILLS or _is_pointwise(kernel)


def _operands(sig: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[list, tuple] | None:
    """The tensors of a call, and all of it that is no size; None where one is not the device's."""
    tensors: list[torch.Tensor] = []
    pattern: list[Any] = [torch.get_default_dtype()]
    for name, value in (*zip(sig.names, args, strict=False), *kwargs.items()):
        pattern.append(name)
        if not _add(sig.by_name[name], value, tensors, pattern):
            return None
    return tensors, tuple(pattern)


def _add(kind: int, value: Any, tensors: list[torch.Tensor], pattern: list[Any]) -> bool:
    """Add an argument to both; whether its tensors may be read with other sizes."""
    if isinstance(value, torch.Tensor):
        pattern.append((value.dim(), value.dtype))
        tensors.append(value)
        return value.numel() > 0 and not (value.is_conj() or value.is_neg()) and _is_whole(value)
    if kind in (TENSORS, NUMBERS) and isinstance(value, list | tuple):
        pattern.append(len(value))
        inner = TENSOR if kind == TENSORS else NUMBER
        return all(_add(inner, one, tensors, pattern) for one in value)
    number = kind == NUMBER and value is not None
    pattern.append(type(value) if number else tuple(value) if isinstance(value, list) else value)
    return True


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's memory is one array of its dtype, and on one device."""
    memory = storage.held_by(tensor) if storage.is_jax(tensor) else None
    same = memory is not None and dtypes.to_jax(tensor.dtype) == memory.dtype
    return same and sharding.sharding_of(memory) is None


# --- one program ----------------------------------------------------------------------------------


class _Read(NamedTuple):
    """How a program reads an operand.

    Attributes:
      slot: where its memory is among the arguments.
      size: as it is read; dims that grow, to their capacity.
      at: where the numbers of the operand begin: offset, strides, lengths of dims that grow, and
        for each of the starts how far apart two neighbours are.
      grows: these dims.
      direct: whether the memory is what is read.
      starts: where the place is at which the view begins, if that is an argument; the offset is
        then that of a view that begins at the memory's first element.
      axes: how many numbers the place has.
    """

    slot: int
    size: tuple[int, ...]
    at: int
    grows: tuple[int, ...]
    direct: bool
    starts: int | None
    axes: int

    def lengths(self, numbers: Any) -> dict[int, Any]:
        """How much of each dim counts, where that is not all."""
        first = self.at + 1 + len(self.size)
        return {d: numbers[first + i] for i, d in enumerate(self.grows)}

    def read(self, memories: Any, numbers: Any) -> jax.Array:
        """The operand, its last elements repeated to its capacity."""
        memory = memories[self.slot]
        if self.direct:
            return memory
        lengths, rank = self.lengths(numbers), len(self.size)
        index = numbers[self.at]
        first = self.at + 1 + rank + len(self.grows)
        for axis in range(self.axes):
            start = jnp.asarray(memories[self.starts][axis], numbers.dtype)
            index = index + start * numbers[first + axis]
        for d, n in enumerate(self.size):
            along = jnp.arange(n, dtype=numbers.dtype)
            along = jnp.minimum(along, lengths[d] - 1) if d in lengths else along
            shape = (*(1,) * d, n, *(1,) * (rank - d - 1))
            index = index + (along * numbers[self.at + 1 + d]).reshape(shape)
        return memory.at[index].get(mode="clip")

    def filled(self, x: jax.Array, numbers: Any, fill: Any, is_pointwise: bool) -> jax.Array:
        """The operand with what ``fill`` says behind its end; without, with its last element."""
        for d, length in self.lengths(numbers).items():
            along = jnp.arange(x.shape[d], dtype=numbers.dtype)
            if fill is not None:
                counts = jnp.expand_dims(along < length, tuple(i for i in range(x.ndim) if i != d))
                x = jnp.where(counts, x, jnp.asarray(fill(x.dtype), x.dtype))
            elif self.direct and not is_pointwise:  # otherwise it was read so
                x = jnp.take(x, jnp.minimum(along, length - 1), axis=d)
        return x


class _Program:
    """The function of all calls of one kind whose sizes have the same capacities.

    Attributes:
      run: the numbers of a call and its memories to new arrays.
      grows: of each result, which dims grow; nothing where it is no tensor.
      message: of the operator's check; filled by the trace.
    """

    def __init__(self, run: Tiered, grows: list[tuple[bool, ...]], message: list[Any]):
        self.run, self.grows, self.message = run, grows, message


def serve(
    kernel: Any, entry: Any, growth: Growth | None, args: tuple, kwargs: dict, inferred: Any
) -> None:
    """Have an entry run the program of all calls of its kind; nothing is done where that cannot be.

    Within a trace of JAX's the entry's own function still serves it.
    """
    sig = kernel.signature
    if growth is None:
        return
    tensors, _ = _operands(sig, args, kwargs) or ([], ())
    if kernel.lowering.name == "torch_jax::copy":
        inferred = [Output(tuple(tensors[0].shape), None, kwargs.get("dtype", args[-1]))]
    if inferred is None:
        return
    placed = entries.template(sig, args, kwargs, None)
    views = list(_of(entries.View, placed.values()))
    elements = sum(tensor.numel() for tensor in tensors)
    elements += sum(math.prod(spec.size) for spec in inferred if spec)
    if elements > _MOST_ELEMENTS:
        return
    try:
        reads, numbers = _reads(views, tensors, growth)
    except NotImplementedError:
        return
    at_sizes = len(numbers)
    for spec in inferred:
        numbers += spec.size if spec else ()
    key = (
        entry.key[0],
        growth.pattern,
        tuple(reads),
        tuple(number.slot for number in _of(entries.Number, placed.values())),
        tuple(
            None if r.direct else _length(storage.held_by(t))
            for r, t in zip(reads, tensors, strict=True)
        ),
        tuple(s and (s.dtype, len(s.size), s.stride and (s.size, s.stride)) for s in inferred),
        policies.checks_indices(),
    )
    program = kernel.history.programs.get(key)
    if program is None:
        given = {
            name: _without_tensors(value)
            for name, value in (*zip(sig.names, args, strict=False), *kwargs.items())
        }
        tracing = _Tracing(kernel, entry.key, placed, given, views, reads, inferred, at_sizes)
        program = tracing.program(tensors, entry.simple)
        if program is None:
            return
        kernel.history.programs[key] = program
    entry.outputs = list(inferred)
    if kernel.lowering.name in _NUMBERS:
        for at, count in _NUMBERS[kernel.lowering.name](tensors).items():
            entry.outputs[at] = entries.Value(count)
    calls = _WORTH // max(elements, _LEAST_ELEMENTS)
    entry.run.call = _caller(program, reads, numbers, entry, inferred, calls)


def _without_tensors(value: Any) -> Any:
    """An argument as a program may keep it, which no tensor of the first call is to outlive."""
    if isinstance(value, list | tuple):
        return [_without_tensors(one) for one in value]
    return None if isinstance(value, torch.Tensor) else value


# Results that are numbers, by place.
_NUMBERS: dict[str, Callable[[list[torch.Tensor]], dict[int, int]]] = {
    "_scaled_dot_product_fused_attention_overrideable": lambda tensors: {
        4: tensors[0].shape[2],
        5: tensors[1].shape[2],
    },
}


def _caller(
    program: _Program,
    reads: list[_Read],
    numbers: list[int],
    entry: Any,
    inferred: list[Any],
    calls: int,
) -> Callable[..., Any]:
    """What an entry runs: the shared program, with the numbers of its sizes; ``calls`` times."""
    given = np.array(numbers, np.int32 if max(numbers, default=0) < 2**31 else np.int64)
    slots = [read.slot for read in reads if not read.direct]
    grown = zip(inferred, program.grows, strict=True)
    exact = [_exact(spec) if any(grows) else None for spec, grows in grown if spec]
    simple, check = entry.simple, entry.check
    tiers, own, left = entry.run, entry.run.call, calls

    def call(*memories: Any) -> Any:
        nonlocal left
        if sharding.Use.begun and any(map(sharding.sharding_of, memories)):
            return own(*memories)  # which XLA splits over the mesh
        left -= 1
        if left < 0:
            tiers.call = own
            tiers.promoted()
            return own(*memories)
        lengthened = list(memories)
        for slot in slots:
            lengthened[slot] = _lengthened(memories[slot])
        found = program.run.call(given, *lengthened)
        if check == []:  # as the entry's own trace would have left it
            check[:] = program.message
        if simple:
            return found if exact[0] is None else exact[0](found)
        return [
            array if take is None else take(array)
            for take, array in itertools.zip_longest(exact, found)
        ]

    return call


def _exact(spec: Output) -> Callable[[Any], Any]:
    """What takes the part of a program's result that counts, of which a tensor's memory is made.

    The host copies it, which compiles nothing.
    """
    count = math.prod(spec.size)
    put = jax_core.copier(jax.core.ShapedArray(spec.size, dtypes.to_jax(spec.dtype)))
    return lambda array: put(np.asarray(array)[:count].reshape(spec.size))


def _of(kind: type, values: Any) -> Iterator[Any]:
    """The views, or the numbers, among placed arguments."""
    for value in values:
        if isinstance(value, list):
            yield from _of(kind, value)
        elif isinstance(value, kind):
            yield value


def _reads(views: list, tensors: list, growth: Growth) -> tuple[list[_Read], list[int]]:
    """How each operand is read, and the numbers that the program is given for them."""
    reads: list[_Read] = []
    numbers: list[int] = []
    for i, (view, tensor) in enumerate(zip(views, tensors, strict=True)):
        grows = tuple(d for d in range(tensor.dim()) if (i, d) in growth.dims)
        size = tuple(length_for(n) if d in grows else n for d, n in enumerate(tensor.shape))
        memory, offset = storage.held_by(tensor), int(tensor.storage_offset())
        # a memory that is full by chance is none of a length that comes again
        full = bool(grows) and tuple(tensor.shape) == size
        whole = memory.shape == size and not offset and view.starts is None
        direct = whole and not full and tensor.stride() == geometry.row_major(size)
        apart = () if view.starts is None else _apart(view.window, memory)
        offset = offset if view.starts is None else 0
        reads.append(_Read(view.slot, size, len(numbers), grows, direct, view.starts, len(apart)))
        numbers += (offset, *tensor.stride(), *(tensor.shape[d] for d in grows), *apart)
    return reads, numbers


def _apart(lens: geometry.Lens, memory: Any) -> tuple[int, ...]:
    """How far apart in a memory neighbours are along each axis that a window is cut from."""
    before = list(itertools.takewhile(lambda step: not isinstance(step, windows.Window), lens))
    if not all(isinstance(step, geometry.Reshape) for step in before):
        raise NotImplementedError("a window of elements of another dtype")
    cut: Any = before[-1] if before else memory
    return geometry.row_major(cut.shape)


def _value(placed: Any, given: Any, operands: dict[int, Any], memories: Any) -> Any:
    """What a lowering is given for an argument: padded operands, numbers of the memories."""
    if isinstance(placed, list):
        pairs = zip(placed, given, strict=True)
        return [_value(*pair, operands, memories) for pair in pairs]
    if isinstance(placed, entries.View):
        return operands[id(placed)]
    if isinstance(placed, entries.Number):
        return given if memories is None else memories[placed.slot]
    return placed


class _Tracing(NamedTuple):
    """What the function of a program is made of."""

    kernel: Any
    key: tuple
    placed: dict[str, Any]
    given: dict[str, Any]
    views: list[Any]
    reads: list[_Read]
    inferred: list[Any]
    at_sizes: int

    def program(self, tensors: list[torch.Tensor], simple: bool) -> _Program | None:
        """The program, if the operator does with capacities what it does with sizes."""
        grows = self._what_grows(tensors)
        if grows is None:
            return None
        message: list[Any] = []

        def run(numbers, *memories):
            arrays = [r.read(memories, numbers) for r in self.reads]
            results, ok = self._results(arrays, numbers, memories)
            given = self._emitted(results, grows, numbers)
            if ok is not None:
                flag, *error = ok
                message[:] = error
                given.append(flag)
            return given[0] if simple else given

        elements = sum(math.prod(read.size) for read in self.reads)
        return _Program(Tiered(run, elements), grows, message)

    def _emitted(self, results: list[Any], grows: list[tuple[bool, ...]], numbers: Any) -> list:
        """The arrays of results: in the order of their memory, those that grow compact."""
        arrays: list[Any] = []
        at = self.at_sizes
        for result, spec, growing in zip(results, self.inferred, grows, strict=True):
            if not spec:
                continue
            if any(growing):
                result = promotion.convert(result, dtypes.to_jax(spec.dtype))
                size = [numbers[at + d] for d in range(len(growing))]
                arrays.append(_compact(result, size, growing))
            else:
                entries.emit(result, spec, arrays, self.kernel.op)
            at += len(spec.size)
        return arrays

    def _results(self, arrays: list[Any], numbers: Any, memories: Any) -> tuple[list[Any], Any]:
        """What the lowering gives for padded operands, and what its check says.

        Without ``memories`` numbers are those of the call at hand.
        """
        lowering, sig = self.kernel.lowering, self.kernel.signature
        own = OWN.get(lowering.name)
        operands = {
            id(view): Operand(array, read.lengths(numbers))
            if own
            else read.filled(array, numbers, FILLS.get(lowering.name), _is_pointwise(self.kernel))
            for view, read, array in zip(self.views, self.reads, arrays, strict=True)
        }

        call = {
            name: _value(placed, self.given.get(name), operands, memories)
            for name, placed in self.placed.items()
            if name != "generator"
        }
        if lowering.random:
            slot = self.placed["generator"].slot
            words = np.zeros(4, np.uint32) if memories is None else memories[slot]
            call[str(lowering.random)] = generators.key(words)
        if lowering.name in ALONG:
            whole, dim = self.reads[0], self.given["dim"]
            if dim % max(len(whole.size), 1) in whole.grows:
                raise NotImplementedError("places along a dim that grows")
        check = lowering.check if policies.checks_indices() and not own else None
        precisions = self.key[0][1] if lowering.products else None
        default = dtypes.to_jax(torch.get_default_dtype())
        with promotion.default_float_is(default), precisions_are(precisions):
            result = entries.apply(own or lowering.function, sig, call)
            ok = check(**entries.by_parameter(check, call)) if check else None
        return entries.results(result, sig, self.kernel.op), ok

    def _what_grows(self, tensors: list[torch.Tensor]) -> list[tuple[bool, ...]] | None:
        """Which dims of each result grow: those that are longer where capacities are."""
        try:
            one, two = (self._shapes(tensors, factor) for factor in (1, 2))
        except Exception:  # it does not do with capacities what it does with sizes
            return None
        grows: list[tuple[bool, ...]] = []
        for short, long, spec in zip(one, two, self.inferred, strict=True):
            if not spec:
                grows.append(())
                continue
            if short is None or len(short) != len(spec.size):
                return None
            growing = tuple(a != b for a, b in zip(short, long, strict=True))
            counts = zip(spec.size, short, growing, strict=True)
            fits = all(n <= length if g else n == length for n, length, g in counts)
            if not fits or (any(growing) and spec.stride is not None):
                return None
            grows.append(growing)
        return grows

    def _shapes(self, tensors: list[torch.Tensor], factor: int) -> list[Any]:
        """The shapes of the results where capacities are ``factor`` times what they are."""
        arrays = [
            jax.ShapeDtypeStruct(
                tuple(n * factor if d in read.grows else n for d, n in enumerate(read.size)),
                dtypes.to_jax(tensor.dtype),
            )
            for read, tensor in zip(self.reads, tensors, strict=True)
        ]
        found: list[Any] = []

        def shapes(arrays, numbers):
            results, _ = self._results(arrays, numbers, None)
            found[:] = [getattr(result, "shape", None) for result in results]

        count = self.at_sizes + sum(len(spec.size) for spec in self.inferred if spec)
        with x64():
            jax.eval_shape(shapes, arrays, jax.ShapeDtypeStruct((count,), np.int32))
        return found


def _is_pointwise(kernel: Any) -> bool:
    return torch.Tag.pointwise in kernel.op.tags or kernel.lowering.name == "torch_jax::copy"


def _compact(x: jax.Array, size: list[Any], grows: tuple[bool, ...]) -> jax.Array:
    """The elements of ``x`` within ``size``, row-major without gaps, at the front of a vector."""
    last = max(d for d, g in enumerate(grows) if g)
    rows, inner = math.prod(x.shape[: last + 1]), math.prod(x.shape[last + 1 :])
    table = x.reshape(rows, inner)
    if math.prod(x.shape[:last]) > 1:
        rest, at = jnp.arange(rows, dtype=size[0].dtype), 0
        for d in range(last, -1, -1):
            at = at + rest % size[d] * math.prod(x.shape[d + 1 : last + 1])
            rest = rest // size[d]
        table = table.at[at].get(mode="clip")
    flat = table.reshape(-1)
    return jnp.pad(flat, (0, _round(flat.size) - flat.size))


def _round(n: int) -> int:
    """The next number of three significant bits: few lengths, a quarter longer at most.

    >>> [_round(n) for n in (3, 9, 100, 1000)]
    [16, 16, 112, 1024]
    """
    unit = 1 << max((n - 1).bit_length() - 3, 0) if n > 16 else 16
    return -(-n // unit) * unit


def _length(memory: Any) -> int:
    """As how long a vector a memory is given to a program."""
    length = _round(memory.size)
    if memory.ndim == 1 and memory.size == length:
        return length
    return length_for(memory.size) if memory.nbytes <= _SMALL else length


def _lengthened(memory: Any) -> Any:
    """A memory as a vector of one of few lengths; by the host, which compiles nothing."""
    length = _length(memory)
    if memory.ndim == 1 and memory.size == length:
        return memory
    host = np.zeros(length, memory.dtype)
    host[: memory.size] = np.asarray(transfer.on_host(memory)).reshape(-1)
    return jax.device_put(host)
