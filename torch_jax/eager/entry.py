"""Compiled entries: the function of memories that serves all calls of one key, and its outputs.

An entry reads each view out of the memory behind it, runs the lowering, writes results back through
the views, and returns the new memories and the new arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import math
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_jax import target
from torch_jax._private import jax_core
from torch_jax.compiler import options
from torch_jax.core import errors, policies
from torch_jax.core.active import ACTIVE
from torch_jax.eager import signature as kinds
from torch_jax.eager.meta import Output, is_channels_last
from torch_jax.eager.signature import Signature
from torch_jax.memory import dtypes, generators, geometry, storage, windows
from torch_jax.ops import promotion
from torch_jax.ops.precision import precisions_are
from torch_jax.ops.registry import InOrder, Leading, Lowering


class Value(NamedTuple):
    """A Python value that an operator returns, such as the bool of ``aten.equal``."""

    value: Any


class Compiled:
    """A function of arrays, which XLA compiles at its first call, fully optimised."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    @functools.cached_property
    def call(self) -> Callable[..., Any]:
        """Return the function to call outside of a trace."""
        return jax.jit(self._function, compiler_options=options.operator())

    @functools.cached_property
    def plain(self) -> Callable[..., Any]:
        """Return the function to call within a trace, whose program has XLA's options."""
        return jax.jit(self._function)

    @property
    def here(self) -> Callable[..., Any]:
        return self.call if jax_core.is_outside_traces() else self.plain


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """A compiled call."""

    run: Any  # Compiled; where it is ``concrete``, a function in that form
    outputs: list[Any]  # Output, Value, None (no tensor) or a list of them; filled by the trace
    slots: tuple[int, ...]  # the memories that are written, in the order of the arrays returned
    concrete: bool  # ran without jit: the shapes depend on values, and ``run`` returns outputs too
    simple: bool  # one new tensor comes out, and nothing else happens
    check: list[Any] | None  # message and type of the error raised when the check's flag is false
    tensor: tuple[Any, Any] | None = None  # size and dtype, where a contiguous one comes out alone
    uses: int = 0  # calls
    key: tuple = ()  # of the calls that it serves, for reports
    serial: int = dataclasses.field(default_factory=itertools.count().__next__)
    bodies: dict[tuple, Any] = dataclasses.field(default_factory=dict)  # jaxprs, for recordings
    placed: Any = None  # the operator's arguments, each as the place of its value
    on_host: Any = None  # the call by PyTorch's CPU kernel; None where there is no such kernel
    maker: Any = False  # makes new arrays of numbers alone; None: its trace in a recording says
    words: int | None = None  # the slot of a random operator's draw


def wrap_output(spec: Any, arrays: list[Any]) -> Any:
    """Take the arrays of one return off the front of ``arrays`` and make tensors of them."""
    if isinstance(spec, list):
        return [wrap_output(one, arrays) for one in spec]
    if spec is None:
        return None
    if isinstance(spec, Value):
        return spec.value
    tensor = storage.wrap(arrays.pop(0), spec.dtype)
    return tensor if spec.stride is None else storage.restride(tensor, spec.size, spec.stride, 0)


class View(NamedTuple):
    """The place of a tensor argument: a slot and a geometry over it."""

    slot: int
    shape: tuple[int, ...]  # as predicates over arguments call an array's
    stride: tuple[int, ...]
    offset: int
    dtype: np.dtype
    starts: int | None = None  # the slot of its start, if that is an input
    window: geometry.Lens = ()  # the lens, where it is known before the trace

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def lens(self, memories: list[Any]) -> geometry.Lens:
        if self.window:
            return windows.at(self.window, None if self.starts is None else memories[self.starts])
        memory, place = memories[self.slot], (self.shape, self.stride, self.offset)
        return geometry.view(memory.shape, memory.dtype, *place, self.dtype)

    def read(self, memories: list[Any]) -> jax.Array:
        return geometry.read(jnp.asarray(memories[self.slot]), self.lens(memories))

    def read_rows(self, memories: list[Any]) -> jax.Array:
        """Read a matrix, without a reshape where it can be: TPUs' compiler then fuses a sum."""
        memory = memories[self.slot]
        if len(self.shape) != 2 or self.lens(memories) != (geometry.Reshape(self.shape),):
            return self.read(memories)
        rows, columns = self.shape
        ends = (at for at in range(memory.ndim) if math.prod(memory.shape[:at]) == rows)
        leading = memory.shape[: next(ends, 0)] or (rows,)
        return jnp.asarray(memory).reshape(*leading, columns)

    def write(self, memories: list[Any], value: jax.Array) -> None:
        value = promotion.convert(jnp.broadcast_to(value, self.shape), self.dtype)
        memories[self.slot] = geometry.write(memories[self.slot], self.lens(memories), value)


class Number(NamedTuple):
    """A traced number, or key data, in a slot."""

    slot: int


def template(sig: Signature, args, kwargs, slots) -> dict[str, Any]:
    """Return the arguments by name, with places in place of tensors and numbers."""
    count = itertools.count()

    def slot() -> int:
        index = next(count)
        return slots[index] if slots and index < len(slots) else index

    def place(kind: kinds.Kind, value: Any) -> Any:
        if value is None and kind != kinds.GENERATOR:
            return None
        if callable(kind):
            kind = kinds.STATIC if kind(value) else kinds.NUMBER
        if kind in (kinds.TENSOR, kinds.NUMBER) and isinstance(value, torch.Tensor):
            view, moves = _view(slot(), value)
            return view._replace(starts=slot()) if moves else view
        is_integers = kind == kinds.INTEGERS and ACTIVE.tracer is None
        if is_integers or kind in (kinds.GENERATOR, kinds.NUMBER, kinds.TENSOR):
            return Number(slot())
        if kind in (kinds.TENSORS, kinds.NUMBERS):
            inner = kinds.TENSOR if kind == kinds.TENSORS else kinds.NUMBER
            return [place(inner, item) for item in value]
        if kind == kinds.DTYPE:
            return dtypes.to_jax(value)
        return tuple(value) if isinstance(value, list) else value

    placed = {
        name: place(sig.by_name[name], value)
        for name, value in sig.named(args, kwargs).items()
        if sig.by_name[name] != kinds.DROP
    }
    if "generator" not in placed:
        placed["generator"] = place(kinds.GENERATOR, None)
    return placed


def _view(slot: int, tensor: torch.Tensor) -> tuple[View, bool]:
    """Return the place of a tensor, and whether its start is an input of its own."""
    size, stride, dtype = tuple(tensor.shape), tensor.stride(), dtypes.to_jax(tensor.dtype)
    if not storage.is_jax(tensor):  # a CPU operand is read from a contiguous copy
        return View(slot, size, geometry.row_major(size), 0, dtype), False
    view = View(slot, size, stride, int(tensor.storage_offset()), dtype)
    memory = storage.held_by(tensor)
    whole = size == memory.shape and tensor.is_contiguous() and not view.offset
    if whole or ACTIVE.tracer is not None:
        return view, False
    place = windows.place(memory.shape, memory.dtype, size, stride, view.offset, dtype)
    return view._replace(window=place.lens), place.starts is not None


def build(op, lowering: Lowering, sig: Signature, key, args, kwargs, slots, inferred) -> Entry:
    """Build the function of memories that serves calls like this one, jitted where it can be.

    ``key`` is that of the call: it begins with the default dtype and, for operators with products,
    the precisions of these.
    """
    precisions = key[0][1] if lowering.products else None
    placed = template(sig, args, kwargs, slots)
    key_slot = placed.pop("generator")
    draws = lowering.random and (not lowering.drawn_if or bool(placed.get(lowering.drawn_if)))
    outputs: list[Any] = []
    targets = _views([placed.get(name) for name in sig.writes])
    written = sorted({view.slot for view in targets})
    default = dtypes.to_jax(torch.get_default_dtype())
    check = lowering.check
    message: list[Any] = []
    strides = {f"{name}_strides": placed[name].stride for name in lowering.strided}
    in_order = [placed[name] for name in lowering.channels_last]
    channels_last = any(is_channels_last(view.shape, view.stride) for view in in_order)
    concrete = lowering.concrete
    if callable(concrete):
        concrete = concrete(**by_parameter(concrete, placed))
    simple = not (concrete or check or sig.writes or sig.lists != (False,))
    reading = _reader(placed) if concrete else lambda m: lambda view: view.read(m)
    turns, specs = _turns(placed, sig), inferred or [None] * sig.fresh
    if not lowering.uniform:
        for form in ((view.shape, view.stride) for view in targets):
            if geometry.repeats(*form) or geometry.overlaps(*form):  # which element is written?
                raise RuntimeError(errors.SHARED)

    def computed(part: dict[str, Any], memories: list[Any], read: Callable) -> tuple[list, Any]:
        """Return the lowering's results for some arguments, and those of its check."""
        call = {name: _fill(value, memories, read) for name, value in part.items()}
        call |= strides
        if in_rows := lowering.rows in placed and target.platform() == "tpu":
            call[lowering.rows] = placed[lowering.rows].read_rows(memories)
        if draws:
            name = lowering.random if isinstance(lowering.random, str) else "key"
            call[name] = generators.key(memories[key_slot.slot])
        with promotion.default_float_is(default), precisions_are(precisions):
            found = results(apply(lowering.function, sig, call), sig, op)
            ok = check(**by_parameter(check, call)) if check else None
        if channels_last:
            found[: sig.fresh] = map(_channels_last, found[: sig.fresh])
        if in_rows:
            sizes = *(spec.size for spec in specs), *(view.shape for view in targets)
            pairs = zip(found, sizes, strict=True)  # meta functions know products
            found = [one if one.ndim <= len(size) else Leading(one, size) for one, size in pairs]
        return found, ok

    def run(*given):
        memories = list(given)
        read = reading(memories)
        for part in turns:
            found, ok = computed(part, memories, read)
            for name, value in zip(sig.writes, found[sig.fresh :], strict=True):
                _put(part.get(name), value, memories)
        arrays: list[Any] = []
        fresh = zip(found[: sig.fresh], specs, strict=True)
        emitted = [emit(result, spec, arrays, op) for result, spec in fresh]
        arrays += [memories[slot] for slot in written]
        if ok is not None:
            ok, text, kind = (*ok, IndexError)[:3]
            kind = errors.of_torch(kind)
            if policies.checks(kind):
                message[:] = text, kind
                arrays.append(ok)
        if concrete:
            return arrays, emitted
        outputs[:] = emitted
        return arrays[0] if simple else arrays

    # of its programs in profiles; equal programs of one name are one entry of the cache on disk
    run.__name__ = f"{op.namespace}.{op._opname.rstrip('_')}"
    function = SimpleNamespace(call=run, plain=run, here=run) if concrete else Compiled(run)
    return Entry(
        function,
        outputs,
        tuple(written),
        concrete,
        simple,
        message if check else None,
        placed=placed,
        words=key_slot.slot if draws else None,
        maker=None if not (draws or written) and _makes(op) else False,
    )


def _turns(placed: dict[str, Any], sig: Signature) -> list[dict[str, Any]]:
    """Return the arguments, or those for each element of lists where one may read another's writes.

    PyTorch's CPU kernels write the tensors of ``_foreach_add_`` one after the other.
    """
    lists = {name: value for name, value in placed.items() if isinstance(value, list)}
    own = next((lists.get(name, []) for name in sig.names[:1] if name in sig.writes), [])
    users = {(one.slot, at) for each in lists.values() for at, one in enumerate(each) if one}
    times = Counter(slot for slot, _ in users)
    if all(times[one.slot] == 1 for one in own):
        return [placed]
    return [{name: _part(value, at) for name, value in placed.items()} for at in range(len(own))]


def _part(value: Any, at: int) -> Any:
    """Return the argument for one element of lists; ``scalars`` are a number for each element."""
    if isinstance(value, View) and len(value.shape) == 1:
        return value._replace(shape=(1,), offset=at)
    return value[at : at + 1] if type(value) in (list, tuple) else value


def _makes(op: Any) -> bool:
    """Return whether new arrays are made; not by ``ones_like``, which begins backward passes."""
    name = op._opname
    takes_tensors = any("Tensor" in str(argument.type) for argument in op._schema.arguments)
    by_name = (name.endswith("_like") and name != "ones_like") or name.startswith("new_")
    return not takes_tensors or by_name or op.namespace != "aten"


def _views(placed: Any) -> list[View]:
    leaves = jax.tree.leaves(placed, is_leaf=lambda one: isinstance(one, View))
    return [one for one in leaves if isinstance(one, View)]


def _reader(placed: dict[str, Any]) -> Callable[[list[Any]], Callable[[View], Any]]:
    """Return a reader for a function outside ``jax.jit``: one compiled program reads the views."""
    views = _views(placed)

    def read(*memories: Any) -> list[jax.Array]:
        return [view.read(list(memories)) for view in views]

    program = Compiled(read)

    def reading(memories: list[Any]) -> Callable[[View], Any]:
        if all(not view.lens(memories) for view in views):
            arrays = [memories[view.slot] for view in views]
        else:
            arrays = program.here(*memories)
        return dict(zip(views, map(jnp.asarray, arrays), strict=True)).__getitem__

    return reading


def _fill(placed: Any, memories: list[Any], read: Callable[[View], Any]) -> Any:
    """Return an argument's value, out of the memories."""
    if isinstance(placed, View):
        return read(placed)
    if isinstance(placed, Number):
        return memories[placed.slot]
    return [_fill(one, memories, read) for one in placed] if isinstance(placed, list) else placed


def apply(function, sig: Signature, call: dict[str, Any]) -> Any:
    """Call a lowering: positional arguments in order, keyword-only ones by name."""
    args, kwargs = sig.split(call)
    return function(*args, **kwargs)


def by_parameter(function, call: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that ``function`` takes by name: ``from_`` for ``from``."""
    if function.__code__.co_flags & inspect.CO_VARKEYWORDS:
        return call
    wanted = function.__code__.co_varnames[: function.__code__.co_argcount]
    schema_names = {name: name.removesuffix("_") for name in wanted}
    return {name: call[given] for name, given in schema_names.items() if given in call}


def results(result: Any, sig: Signature, op: Any) -> list[Any]:
    """Return a lowering's result as a list: new values first, then one per written argument."""
    total = sig.fresh + len(sig.writes)
    if total == 1:
        if result is None and sig.fresh:
            raise _wrong(result, "a jax.Array", op)
        return [result]
    if not isinstance(result, list | tuple) or len(result) != total:
        raise _wrong(result, f"{total} results", op)
    return list(result)


_ARRAYS = (jax.Array, np.ndarray, np.generic)


def _wrong(result: Any, wanted: str, op: Any) -> TypeError:
    given = "nothing" if result is None else f"a {type(result).__name__}"
    given += f" of {len(result)}" if isinstance(result, list | tuple) else ""
    return TypeError(f"the function that serves {op} returned {given} in place of {wanted}")


def _channels_last(result: Any) -> Any:
    """Return a result with channels_last strides, where it has the dims for them."""
    if not isinstance(result, jax.Array) or result.ndim not in (4, 5):
        return result
    return InOrder(result, (0, *range(2, result.ndim), 1))


def emit(result: Any, spec: Any, arrays: list[Any], op: Any) -> Any:
    """Append a result to ``arrays`` in memory order; return the tensor that it becomes."""
    if result is None:
        return None
    if isinstance(result, Leading):
        value = result.value
        if isinstance(spec, Output):
            value = promotion.convert(value, dtypes.to_jax(spec.dtype))
        arrays.append(value)
        steps = result.stride or geometry.row_major(result.size)
        return Output(result.size, steps, dtypes.to_torch(value.dtype))
    if isinstance(result, InOrder):
        result, spec = result.value, _in_order(result, spec)
    if isinstance(spec, Output) and not isinstance(result, _ARRAYS):
        raise _wrong(result, "a jax.Array", op)
    if isinstance(result, list | tuple):
        specs = spec if isinstance(spec, list) else [None] * len(result)
        return [emit(r, s, arrays, op) for r, s in zip(result, specs, strict=True)]
    if not hasattr(result, "dtype"):
        return Value(result)
    if spec is None:
        stride = geometry.row_major(result.shape) if 0 in result.shape else None
        spec = Output(result.shape, stride, dtypes.to_torch(result.dtype))
    elif tuple(result.shape) != spec.size:
        raise RuntimeError(
            f"{op} gives shape {tuple(result.shape)} where PyTorch says {spec.size}, which is a "
            "fault of torch_jax: run it on the CPU, and report it please"
        )
    else:
        result = promotion.convert(result, dtypes.to_jax(spec.dtype))
        if spec.stride is not None and result.size:
            result = result.transpose(geometry.memory_order(spec.size, spec.stride))
    if not isinstance(result, jax.Array):  # but NumPy's
        result = jax.device_put(np.asarray(result, order="C"))
    arrays.append(result)
    return spec


def _in_order(result: InOrder, spec: Output | None) -> Output:
    """Return the output with the strides that the lowering asks for."""
    size, order = tuple(result.value.shape), result.order
    stride = [0] * len(size)
    for d, step in zip(order, geometry.row_major([size[d] for d in order]), strict=True):
        stride[d] = step
    dtype = dtypes.to_torch(result.value.dtype) if spec is None else spec.dtype
    size = size if spec is None else spec.size
    plain = tuple(stride) == geometry.row_major(size) and 0 not in size
    return Output(size, None if plain else tuple(stride), dtype)


def _put(placed: Any, value: Any, memories: list[Any]) -> None:
    """Write a new value (None: unchanged) through the view that it belongs to."""
    if isinstance(placed, list):
        for one, new in zip(placed, value, strict=True):
            _put(one, new, memories)
    elif placed is not None and value is not None:
        if isinstance(value, Leading):
            value = value.value.reshape(value.size)
        placed.write(memories, value)
