"""Primitives of JAX that NumPy computes as XLA does on the CPU, to the bit.

An operator that only moves elements, compares them, or rounds each result once gives the same bits
whoever computes it. What is left out, because it does not: products of matrices, convolutions,
functions such as ``exp``, long sums, which XLA takes apart, and arithmetic of the short floats,
which XLA keeps in float32 in between. Denormal floats, which XLA takes for zeros, are the affair of
the caller (:mod:`torch_jax.compiler.by_numpy`); which of two zeros, or of a zero and a denormal, is
the largest of a row, is left open.

Each entry of :data:`TABLE` takes an equation and gives a function of its operands as NumPy's
arrays, or None where the equation is not one that NumPy computes alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

Function = Callable[..., Any]
TABLE: dict[str, Callable[[Any], Function | None]] = {}


def _kind(eqn: Any, at: int = 0) -> str:
    """The kind of an operand's dtype, as NumPy's letters; V for what NumPy has no name for."""
    return np.dtype(eqn.invars[at].aval.dtype).kind


def _size(eqn: Any) -> int:
    return np.dtype(eqn.invars[0].aval.dtype).itemsize


def is_whole(eqn: Any) -> bool:
    """Whether the operands are integers or bools."""
    return _kind(eqn) in "iub"


def is_plain(eqn: Any) -> bool:
    """Whether the operands are integers, bools, float32 or float64."""
    return is_whole(eqn) or (_kind(eqn) == "f" and _size(eqn) >= 4)


def _when(test: Callable[[Any], bool], function: Function) -> Callable[[Any], Function | None]:
    return lambda eqn: function if test(eqn) else None


def is_float(eqn: Any) -> bool:
    """Whether the operands are float32 or float64."""
    return is_plain(eqn) and _kind(eqn) == "f"


def _is_number(eqn: Any) -> bool:
    return is_plain(eqn) and _kind(eqn) != "b"


def entry(*names: str) -> Callable[[Any], Any]:
    """Decorator: a function of an equation is what serves primitives of these names."""

    def enter(function: Any) -> Any:
        TABLE.update(dict.fromkeys(names, function))
        return function

    return enter


def _extremes(function: Any, bits: Any) -> Function:
    """The larger or the smaller one, or a NaN: ``bits`` says which of two zeros."""

    def choose(a: Any, b: Any) -> Any:
        found = function(a, b)
        if found.dtype.kind != "f":
            return found
        whole = np.dtype(f"i{found.dtype.itemsize}")
        both = bits(np.asarray(a).view(whole), np.asarray(b).view(whole)).view(found.dtype)
        return np.where(a == b, both, found)

    return choose


_larger, _smaller = _extremes(np.maximum, operator.and_), _extremes(np.minimum, operator.or_)


TABLE.update(
    {
        "add": _when(_is_number, np.add),
        "add_any": _when(_is_number, np.add),
        "sub": _when(_is_number, np.subtract),
        "mul": _when(_is_number, np.multiply),
        "div": _when(is_float, np.divide),
        "neg": _when(_is_number, np.negative),
        "square": _when(_is_number, np.square),
        "sqrt": _when(is_float, np.sqrt),
        "abs": _when(_is_number, np.abs),
        "floor": _when(is_float, np.floor),
        "ceil": _when(is_float, np.ceil),
        "is_finite": _when(is_plain, np.isfinite),
        "max": _when(is_plain, _larger),
        "min": _when(is_plain, _smaller),
        "eq": _when(is_plain, np.equal),
        "ne": _when(is_plain, np.not_equal),
        "lt": _when(is_plain, np.less),
        "le": _when(is_plain, np.less_equal),
        "gt": _when(is_plain, np.greater),
        "ge": _when(is_plain, np.greater_equal),
        "and": _when(is_whole, np.bitwise_and),
        "or": _when(is_whole, np.bitwise_or),
        "xor": _when(is_whole, np.bitwise_xor),
        "not": _when(is_whole, np.invert),
        "rem": _when(is_float, np.fmod),
        "clamp": _when(is_plain, lambda low, x, high: _smaller(_larger(x, low), high)),
        "copy": lambda eqn: lambda x: x,
        "copy_p": lambda eqn: lambda x: x,
        "stop_gradient": lambda eqn: lambda x: x,
    }
)


@entry("integer_pow")
def _power(eqn: Any) -> Function | None:
    return np.square if eqn.params["y"] == 2 and is_plain(eqn) else None


@entry("round")
def _round(eqn: Any) -> Function | None:
    to_even = int(eqn.params["rounding_method"]) == 1
    return np.rint if to_even and is_plain(eqn) else None


@entry("select_n")
def _select(eqn: Any) -> Function | None:
    if len(eqn.invars) != 3 or _kind(eqn) != "b":
        return None
    return lambda which, on_false, on_true: np.where(which, on_true, on_false)


@entry("convert_element_type")
def _convert(eqn: Any) -> Function | None:
    old, new = np.dtype(eqn.invars[0].aval.dtype), np.dtype(eqn.params["new_dtype"])
    if "c" in (old.kind, new.kind):
        return None
    if new.kind == "b":
        return (lambda x: x != 0) if is_plain(eqn) else None
    if old.kind in "iub" or new.kind not in "iub":
        is_known = {old.kind, new.kind} <= set("iubf")
        return (lambda x: x.astype(new)) if is_known else None
    return _to_integers(new) if is_plain(eqn) else None


def _to_integers(new: np.dtype) -> Function:
    """Floats to integers as XLA has it: what is out of range is the nearest, a NaN is 0."""
    least, most = np.iinfo(new).min, np.iinfo(new).max

    def convert(x: Any) -> Any:
        inside = (x > least) & (x < most)
        whole = np.where(inside, x, 0).astype(new)
        beyond = np.where(x >= most, most, np.where(x <= least, least, 0)).astype(new)
        return np.where(inside, whole, beyond)

    return convert


@entry("broadcast_in_dim")
def _broadcast(eqn: Any) -> Function | None:
    shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    if len(eqn.invars) != 1:
        return None
    known = [1] * len(shape)
    for at, size in zip(dims, eqn.invars[0].aval.shape, strict=True):
        known[at] = size
    return lambda x: np.broadcast_to(np.reshape(x, known), shape)


@entry("reshape", "squeeze", "expand_dims")
def _reshape(eqn: Any) -> Function:
    shape = eqn.outvars[0].aval.shape
    return lambda x: np.reshape(x, shape)


@entry("transpose")
def _transpose(eqn: Any) -> Function:
    order = eqn.params["permutation"]
    return lambda x: np.transpose(x, order)


@entry("rev")
def _reverse(eqn: Any) -> Function:
    dims = eqn.params["dimensions"]
    return lambda x: np.flip(x, dims)


@entry("concatenate")
def _concatenate(eqn: Any) -> Function:
    dim = eqn.params["dimension"]
    return lambda *parts: np.concatenate(parts, dim)


@entry("iota")
def _iota(eqn: Any) -> Function | None:
    shape, dim, dtype = (eqn.params[name] for name in ("shape", "dimension", "dtype"))
    if np.dtype(dtype).kind not in "iuf" or eqn.invars:
        return None
    at = [1] * len(shape)
    at[dim] = shape[dim]
    return lambda: np.broadcast_to(np.arange(shape[dim]).astype(dtype).reshape(at), shape)


@entry("slice")
def _slice(eqn: Any) -> Function:
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    where = tuple(map(slice, starts, limits, strides))
    return operator.itemgetter(where)


@entry("pad")
def _pad(eqn: Any) -> Function:
    shape, config = eqn.outvars[0].aval.shape, eqn.params["padding_config"]
    into, out_of = [], []
    for size, end, (low, high, gap) in zip(eqn.invars[0].aval.shape, shape, config, strict=True):
        step = gap + 1
        first = max(0, -(low // step)) if low < 0 else 0
        last = (
            size
            if high >= 0
            else next((n for n in range(size, 0, -1) if low + (n - 1) * step < end), 0)
        )
        into.append(slice(low + first * step, max(low + (last - 1) * step + 1, 0), step))
        out_of.append(slice(first, max(first, last)))

    def pad(x: Any, value: Any) -> Any:
        found = np.full(shape, value, x.dtype)
        part = x[tuple(out_of)]
        if part.size:
            found[tuple(into)] = part
        return found

    return pad


def _window(starts: tuple, sizes: Any, shape: Any) -> tuple:
    """The slices of a window, which is moved to where it fits, as XLA moves it."""
    found = []
    for start, size, whole in zip(starts, sizes, shape, strict=True):
        first = min(max(int(start), 0), whole - size)
        found.append(slice(first, first + size))
    return tuple(found)


@entry("dynamic_slice")
def _dynamic_slice(eqn: Any) -> Function:
    sizes = eqn.params["slice_sizes"]
    return lambda x, *starts: x[_window(starts, sizes, x.shape)]


@entry("dynamic_update_slice")
def _dynamic_update_slice(eqn: Any) -> Function:
    def write(x: Any, part: Any, *starts: Any) -> Any:
        found = np.array(x)
        found[_window(starts, part.shape, x.shape)] = part
        return found

    return write


def _over(function: Function) -> Callable[[Any], Function | None]:
    """A reduction of integers, whose result hangs on no order."""

    def of(eqn: Any) -> Function | None:
        axes, dtype = tuple(eqn.params["axes"]), eqn.outvars[0].aval.dtype
        return (lambda x: function(x, axis=axes).astype(dtype)) if is_whole(eqn) else None

    return of


TABLE.update(
    {
        "reduce_prod": _over(np.prod),
        "reduce_and": _over(np.bitwise_and.reduce),
        "reduce_or": _over(np.bitwise_or.reduce),
        "reduce_xor": _over(np.bitwise_xor.reduce),
    }
)

_IN_ORDER = 32  # a longer row XLA sums in pieces of so many, and then these


@entry("reduce_sum")
def _sum(eqn: Any) -> Function | None:
    axes, x = tuple(eqn.params["axes"]), eqn.invars[0].aval
    if is_whole(eqn):
        return _over(np.sum)(eqn)
    if not is_plain(eqn) or any(x.shape[d] > _IN_ORDER for d in axes):
        return None
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = [x.shape[d] for d in kept]
    if 0 in x.shape or not axes:
        return None

    def total(x: Any) -> Any:
        rows = np.transpose(x, [*kept, *axes]).reshape([*shape, -1])
        return np.add.accumulate(rows, axis=-1)[..., -1] + np.zeros((), x.dtype)

    return total


@entry("reduce_max", "reduce_min")
def _most(eqn: Any) -> Function | None:
    axes, largest = tuple(eqn.params["axes"]), eqn.primitive.name == "reduce_max"
    function = np.max if largest else np.min
    if not is_plain(eqn) or 0 in eqn.invars[0].aval.shape or not axes:
        return None
    return lambda x: function(x, axis=axes)


@entry("stack")
def _stack(eqn: Any) -> Function:
    axis = eqn.params["axis"]
    return lambda *parts: np.stack(parts, axis)


@entry("tile")
def _tile(eqn: Any) -> Function:
    reps = eqn.params["reps"]
    return lambda x: np.tile(x, reps)


@entry("split")
def _split(eqn: Any) -> Function:
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    return lambda x: np.split(x, ends, eqn.params["axis"])


@entry("optimization_barrier")
def _barrier(eqn: Any) -> Function:
    return lambda *values: list(values)


@entry("cumsum")
def _cumulative_sum(eqn: Any) -> Function | None:
    axis, dtype = eqn.params["axis"], eqn.outvars[0].aval.dtype
    if not is_whole(eqn) or eqn.params["reverse"]:
        return None
    return lambda x: np.cumsum(x, axis, dtype=dtype)


@entry("gather")
def _gather(eqn: Any) -> Function | None:
    params, operand = eqn.params, eqn.invars[0].aval
    dims, sizes = params["dimension_numbers"], params["slice_sizes"]
    mode, fill = params["mode"].name, params["fill_value"]
    if mode not in ("CLIP", "PROMISE_IN_BOUNDS", "FILL_OR_DROP"):
        return None
    if np.dtype(operand.dtype).kind not in "iubf":
        return None
    rank = len(eqn.outvars[0].aval.shape)
    windows = [d for d in range(rank) if d in dims.offset_dims]
    batches = [d for d in range(rank) if d not in dims.offset_dims]
    inner = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
    places = dict(zip([d for d in range(operand.ndim) if d not in inner], windows, strict=True))
    value = _fill_value(operand.dtype) if fill is None else fill

    def gather(x: Any, indices: Any) -> Any:
        count = indices.shape[:-1]
        inside = np.ones((), bool)
        at: list[Any] = [0] * x.ndim
        for position, d in enumerate(dims.start_index_map):
            start, most = indices[..., position], x.shape[d] - sizes[d]
            inside = inside & (start >= 0) & (start <= most)
            at[d] = np.clip(start.astype(np.int64), 0, most)
        for d, batch in zip(
            dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True
        ):
            at[d] = _along(np.arange(count[batch]), batch, len(count))
        found = []
        for d in range(x.ndim):
            start = np.asarray(at[d])
            if start.ndim:
                start = np.reshape(start, _spread(start.shape, batches, rank))
            if d in places:
                start = start + _along(np.arange(sizes[d]), places[d], rank)
            found.append(start)
        result = np.broadcast_to(x[tuple(found)], eqn.outvars[0].aval.shape)
        if mode != "FILL_OR_DROP" or inside.all():
            return result
        inside = np.broadcast_to(inside, count).reshape(_spread(count, batches, rank))
        return np.where(inside, result, np.asarray(value, x.dtype))

    return gather


def _fill_value(dtype: Any) -> Any:
    """What XLA's gather gives for places out of bounds, as JAX asks it to."""
    kind = np.dtype(dtype).kind
    if kind == "f":
        return np.nan
    return True if kind == "b" else np.iinfo(dtype).min if kind == "i" else np.iinfo(dtype).max


def _along(values: Any, dim: int, rank: int) -> Any:
    shape = [1] * rank
    shape[dim] = len(values)
    return values.reshape(shape)


def _spread(shape: tuple[int, ...], dims: list[int], rank: int) -> list[int]:
    """A shape over some dimensions of a result, 1 elsewhere."""
    found = [1] * rank
    for d, size in zip(dims, shape, strict=True):
        found[d] = size
    return found


@entry("sort")
def _sort(eqn: Any) -> Function | None:
    """Stable sorting by one key, floats with NaN last."""
    dim, keys = eqn.params["dimension"], eqn.params["num_keys"]
    if keys != 1 or not is_plain(eqn) or not eqn.params["is_stable"]:
        return None

    def sort(*operands: Any) -> list[Any]:
        order = np.argsort(operands[0], axis=dim, kind="stable")
        return [np.take_along_axis(x, order, dim) for x in operands]

    return sort


@entry("argmax", "argmin")
def _extreme(eqn: Any) -> Function | None:
    axes, dtype = eqn.params["axes"], eqn.params["index_dtype"]
    find = np.argmax if eqn.primitive.name == "argmax" else np.argmin
    if len(axes) != 1 or not is_plain(eqn):
        return None
    return lambda x: find(x, axis=axes[0]).astype(dtype)
