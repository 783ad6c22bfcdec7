"""Indices of every kind: read, written, and the gradients of both."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.calls.call import (
    Call,
    T,
    broadcast,
    call,
    chance,
    integers,
    size,
    sizes,
    some,
    tensor,
    within,
)

DTYPES = ("float32", "float32", "float64", "bfloat16", "int64", "bool", "complex64")


def _index(r: Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An index into a tensor of that shape, with at most so many parts as it has dims."""
    parts: list[Any] = []
    common = sizes(r, r.randint(0, 2), 3)  # what index tensors broadcast to
    at = 0
    while at < len(shape) and not chance(r, 0.15):
        taken, part = _part(r, shape[at:], common)
        parts.append(part)
        at += taken
    if chance(r, 0.2):
        parts.insert(r.randint(0, len(parts)), Ellipsis)
    return tuple(parts)


def _part(r: Random, shape: tuple[int, ...], common: tuple[int, ...]) -> tuple[int, Any]:
    """How many dims a part of an index takes, and the part."""
    length = shape[0]
    kind = r.choice(("slice", "slice", "int", "none", "tensor", "tensor", "mask", "list", "bool"))
    if kind == "none":
        return 0, None
    if kind == "bool":
        return (0, chance(r, 0.7)) if chance(r, 0.3) else (1, slice(None))
    if kind == "slice" or not length:
        return 1, _slice(r, length)
    if kind == "int":
        return 1, r.randrange(-length, length) if chance(r, 0.97) else length
    if kind == "mask":
        dims = r.randint(1, min(2, len(shape)))
        return dims, T(shape[:dims], r.choice(("bool", "bool", "uint8")), values="0:2")
    if kind == "list":
        return 1, [r.randrange(-length, length) for _ in range(r.randint(1, 3))]
    dtype = r.choice(("int64", "int64", "int32"))
    return 1, integers(r, broadcast(r, common), -length, length, dtype)


def _slice(r: Random, length: int) -> slice:
    ends = [None, *range(-length - 1, length + 2)]
    return slice(r.choice(ends), r.choice(ends), r.choice((None, None, 1, 2, 3)))


def read(r: Random) -> Call:
    """``x[index]``."""
    shape = sizes(r, r.randint(0, 4), 4)
    return call("getitem", tensor(r, shape, r.choice(DTYPES)), _index(r, shape), within=within(r))


def write(r: Random) -> Call:
    """``x[index] = value``: a number, or a tensor that broadcasts."""
    shape, dtype = sizes(r, r.randint(0, 4), 4), r.choice(DTYPES)
    index = _index(r, shape)
    number = r.choice((1, 0, True, 2.5)) if dtype != "bool" else True
    other = dtype if chance(r, 0.8) else r.choice(DTYPES)
    value = number if chance(r, 0.3) else tensor(r, _value_shape(r, shape, index), other)
    return call("setitem", tensor(r, shape, dtype), index, value, within=within(r))


def _value_shape(r: Random, shape: tuple[int, ...], index: tuple[Any, ...]) -> tuple[int, ...]:
    """Shapes that fit: the right one is known where no tensor is among the parts."""
    import torch

    if any(isinstance(part, T | list | bool) for part in index):
        return r.choice(((), (1,), (1, 1)))
    try:
        return broadcast(r, tuple(torch.empty(shape)[index].shape))
    except IndexError:
        return ()


def put(r: Random) -> Call:
    """``index_put``, with and without ``accumulate``, at places that come more than once."""
    shape, dtype = sizes(r, r.randint(1, 3), 4), r.choice(DTYPES)
    common = sizes(r, r.randint(0, 2), 4)
    accumulate = chance(r, 0.7)
    count = r.randint(1, len(shape))
    if not all(shape[:count]):
        count, common = 1, (0,)
    indices: list[Any] = [integers(r, common, -n, n) for n in shape[:count]]
    if not accumulate:  # which of two writes to one place stays is not defined
        indices = [T(shape[:count], "bool")]
        values = (1,)
    else:
        values = broadcast(r, (*common, *shape[count:]))
    method = r.choice(("torch.index_put", "anew"))
    args = [tensor(r, shape, dtype), tuple(indices), tensor(r, values, dtype)]
    if method == "anew":
        args = ["index_put_", *args]
    return call(method, *args, accumulate=accumulate, within=within(r))


def select(r: Random) -> Call:
    """``index_select``, ``take``, ``take_along_dim``, ``masked_select`` and ``gather``."""
    shape, dtype = sizes(r, r.randint(0, 3), 4), r.choice(DTYPES)
    x = tensor(r, shape, dtype)
    dim = r.randrange(-len(shape), len(shape)) if shape else 0
    length = shape[dim] if shape else 1
    total = 1
    for n in shape:
        total *= n
    kind = r.choice(("index_select", "take", "take_along_dim", "masked_select", "gather"))
    if kind == "index_select":
        index = integers(r, (size(r),), 0, length, r.choice(("int64", "int32")))
        return call("torch.index_select", x, dim, index, within=within(r))
    if kind == "take":
        return call("torch.take", x, integers(r, sizes(r, r.randint(0, 2)), -total, total))
    if kind == "masked_select":
        return call("torch.masked_select", x, T(broadcast(r, shape), "bool"), within=within(r))
    wanted = [r.randint(0, n) for n in shape]
    if shape:
        wanted[dim] = size(r, 4)
    index = integers(r, tuple(wanted), 0, length)
    if kind == "gather":
        return call("torch.gather", x, dim, index, within=within(r))
    return call("torch.take_along_dim", x, index, dim, within=within(r))


def masked(r: Random) -> Call:
    """``where``, ``masked_fill``, ``masked_scatter``, with masks that broadcast."""
    shape, dtype = sizes(r, r.randint(0, 3), 4), r.choice(DTYPES)
    mask = T(broadcast(r, shape), "bool", "plain" if chance(r, 0.7) else "expanded")
    kind = r.choice(("where", "masked_fill", "masked_fill_", "masked_scatter"))
    if kind == "where":
        other = dtype if chance(r, 0.7) else r.choice(DTYPES)
        values = [tensor(r, broadcast(r, shape), d) for d in (dtype, other)]
        values[1] = r.choice((0, 1.5, False)) if chance(r, 0.2) else values[1]
        return call("torch.where", mask, *values, within=within(r))
    x = tensor(r, shape, dtype)
    if kind == "masked_scatter":
        source = tensor(r, (max(1, _count(shape)),), dtype)
        return call("torch.masked_scatter", x, mask, source, within=within(r))
    number = True if dtype == "bool" else r.choice((1, 0, float("-inf") if "i" not in dtype else 3))
    value = number if chance(r, 0.6) else tensor(r, (), dtype)
    if kind == "masked_fill":
        return call("torch.masked_fill", x, mask, value, within=within(r))
    return call("anew", "masked_fill_", x, mask, value, within=within(r))


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def roll(r: Random) -> Call:
    """Elements moved by numbers: ``roll``, ``flip``, ``diagonal``, ``unfold``, ``tril``."""
    shape, dtype = sizes(r, r.randint(1, 4), 4), r.choice(DTYPES)
    x, dim = tensor(r, shape, dtype), r.randrange(-len(shape), len(shape))
    length = shape[dim]
    kind = r.choice(("roll", "flip", "diagonal", "unfold", "tril", "repeat", "interleave", "rot90"))
    code = {
        "roll": lambda: call("torch.roll", x, r.randint(-5, 5), dim),
        "flip": lambda: call("torch.flip", x, (dim,)),
        "diagonal": lambda: call("torch.diagonal", x, r.randint(-2, 2), dim, dim - 1),
        "unfold": lambda: call(
            "torch.Tensor.unfold", x, dim, r.randint(0, length + 1), r.randint(1, 3)
        ),
        "tril": lambda: call(r.choice(("torch.tril", "torch.triu")), x, r.randint(-2, 2)),
        "repeat": lambda: call("torch.Tensor.repeat", x, *(r.randint(0, 2) for _ in shape)),
        "interleave": lambda: call(
            "torch.repeat_interleave", x, r.randint(0, 2), **some(r, dim=dim)
        ),
        "rot90": lambda: call("torch.rot90", x, r.randint(-1, 4), (dim, dim - 1)),
    }[kind]()
    return code._replace(within=within(r))


CALLS = (read, read, read, write, write, write, put, put, select, select, masked, roll)
