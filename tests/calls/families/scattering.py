"""Writes to places that an index tensor names, summed or reduced where they meet."""

from __future__ import annotations

from random import Random

from tests.calls.call import Call, T, call, chance, integers, sizes, some, tensor, within

DTYPES = ("float32", "float32", "float64", "bfloat16", "float16", "int64", "complex64")


def _places(r: Random) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """A shape, a dim, and the shape of an index along the dim."""
    shape = tuple(max(n, 1) for n in sizes(r, r.randint(1, 3), 4))
    dim = r.randrange(len(shape))
    index = tuple(r.randint(0, n) for n in shape)
    return shape, dim, index


def add(r: Random) -> Call:
    """``scatter_add``, whose source may be larger than its index."""
    shape, dim, index = _places(r)
    dtype = r.choice(DTYPES)
    source = tuple(n + r.choice((0, 0, 1)) for n in index)
    return _called(
        r,
        "scatter_add",
        shape,
        dtype,
        dim,
        integers(r, index, 0, shape[dim]),
        tensor(r, source, dtype),
    )


def _called(r: Random, name: str, shape: tuple[int, ...], dtype: str, *args, **kwargs) -> Call:
    """Out of place, or in place on a copy."""
    x = tensor(r, shape, dtype)
    if chance(r, 0.6):
        return call(f"torch.{name}", x, *args, within=within(r), **kwargs)
    return call("anew", name + "_", x, *args, within=within(r), **kwargs)


def scatter(r: Random) -> Call:
    """``scatter`` of one number, or of values to distinct places."""
    shape, dim, index = _places(r)
    dtype = r.choice(DTYPES)
    if chance(r, 0.4):
        number = r.choice((1, 2.5, 0)) if dtype != "int64" else 3
        places = integers(r, index, 0, shape[dim])
        reduced = some(r, reduce=r.choice(("add", "multiply")))
        return _called(r, "scatter", shape, dtype, dim, places, number, **reduced)
    line = tuple(min(n, 1) if d == dim else n for d, n in enumerate(index))
    places = integers(r, line, 0, shape[dim])
    return _called(r, "scatter", shape, dtype, dim, places, tensor(r, line, dtype))


def reduce(r: Random) -> Call:
    """``scatter_reduce`` and ``index_reduce``."""
    shape, dim, index = _places(r)
    dtype = r.choice(("float32", "float32", "float64", "bfloat16", "int64"))
    options = some(r, include_self=chance(r, 0.5))
    if chance(r, 0.3):
        kind = r.choice(("prod", "mean", "amax", "amin"))
        source = (*shape[:dim], index[dim], *shape[dim + 1 :])
        places = integers(r, (index[dim],), 0, shape[dim])
        return _called(
            r, "index_reduce", shape, dtype, dim, places, tensor(r, source, dtype), kind, **options
        )
    kind = r.choice(("sum", "prod", "mean", "amax", "amin"))
    places, source = integers(r, index, 0, shape[dim]), tensor(r, index, dtype)
    return _called(r, "scatter_reduce", shape, dtype, dim, places, source, kind, **options)


def lines(r: Random) -> Call:
    """``index_add``, ``index_copy`` and ``index_fill``: whole slices."""
    shape, dim, index = _places(r)
    dtype = r.choice(DTYPES)
    kind = r.choice(("index_add", "index_add", "index_copy", "index_fill"))
    if kind == "index_fill":
        places = integers(r, (index[dim],), 0, shape[dim])
        value = 3 if chance(r, 0.5) else T((), dtype)
        return _called(r, kind, shape, dtype, dim, places, value)
    count = index[dim] if kind == "index_add" else min(index[dim], 1)
    source = tensor(r, (*shape[:dim], count, *shape[dim + 1 :]), dtype)
    places = integers(r, (count,), 0, shape[dim], r.choice(("int64", "int64", "int32")))
    options = some(r, alpha=2) if kind == "index_add" else {}
    return _called(r, kind, shape, dtype, dim, places, source, **options)


def parts(r: Random) -> Call:
    """``select_scatter``, ``slice_scatter`` and ``diagonal_scatter``."""
    shape, dim, _ = _places(r)
    dtype = r.choice(DTYPES)
    x, length = tensor(r, shape, dtype), shape[dim]
    if chance(r, 0.5):
        source = tensor(r, (*shape[:dim], *shape[dim + 1 :]), dtype)
        at = r.randrange(-length, length)
        return call("torch.select_scatter", x, source, dim, at, within=within(r))
    start, step = r.randint(0, length), r.randint(1, 3)
    count = len(range(start, length, step))
    source = tensor(r, (*shape[:dim], count, *shape[dim + 1 :]), dtype)
    return call("torch.slice_scatter", x, source, dim, start, length, step, within=within(r))


def counts(r: Random) -> Call:
    """``bincount``, ``one_hot``, ``histc``, ``bucketize`` and ``searchsorted``."""
    shape = sizes(r, r.randint(1, 2), 4)
    kind = r.choice(("bincount", "one_hot", "bucketize", "searchsorted"))
    if kind == "bincount":
        options = some(r, weights=T(shape[:1], r.choice(("float32", "float64"))), minlength=6)
        return call("torch.bincount", integers(r, shape[:1], 0, 4), **options)
    if kind == "one_hot":
        return call("F.one_hot", integers(r, shape, 0, 4), r.choice((-1, 4, 6)))
    options = some(r, right=chance(r, 0.5), out_int32=True)
    values = tensor(r, shape, "float32", grad=False)
    if kind == "bucketize":
        return call("torch.bucketize", values, T((3,), "float32", values="0:3"), **options)
    edges = T((*shape[:-1], 3) if chance(r, 0.5) else (3,), "float32", values="1:2")
    return call("torch.searchsorted", edges, values, **options)


CALLS = (add, add, scatter, scatter, reduce, reduce, lines, lines, parts, counts)
