"""Products of matrices and vectors, with their broadcasts."""

from __future__ import annotations

from random import Random

from tests.calls.call import (
    FLOATS,
    Call,
    broadcast,
    call,
    chance,
    size,
    sizes,
    some,
    tensor,
    within,
)

DTYPES = (*FLOATS, "complex64", "int64")


def matmul(r: Random) -> Call:
    """``matmul`` of vectors, matrices and batches that broadcast."""
    dtype, inner = r.choice(DTYPES), size(r, 4)
    batch = sizes(r, r.choice((0, 0, 1, 2, 3)), 3)
    left = (inner,) if chance(r, 0.2) else (*broadcast(r, batch), size(r, 4), inner)
    right = (inner,) if chance(r, 0.2) else (*broadcast(r, batch), inner, size(r, 4))
    other = r.choice(DTYPES) if chance(r, 0.05) else dtype
    return call(
        "torch.matmul",
        tensor(r, left, dtype),
        tensor(r, right, other),
        within=within(r, "autocast"),
    )


def linear(r: Random) -> Call:
    """``linear``, also with a weight of one dim."""
    dtype, inner, out = r.choice(DTYPES), size(r, 4), size(r, 4)
    flat = chance(r, 0.15)
    bias = {"bias": tensor(r, () if flat else (out,), dtype)}
    return call(
        "F.linear",
        tensor(r, (*sizes(r, r.randint(0, 3), 3), inner), dtype),
        tensor(r, (inner,) if flat else (out, inner), dtype),
        within=within(r, "autocast"),
        **some(r, **bias),
    )


def bilinear(r: Random) -> Call:
    """``bilinear``."""
    dtype, batch = r.choice(FLOATS), sizes(r, r.randint(0, 2), 3)
    one, two, out = r.randint(1, 3), r.randint(1, 3), r.randint(1, 3)
    inputs = [tensor(r, (*batch, n), dtype) for n in (one, two)]
    weight, bias = tensor(r, (out, one, two), dtype), {"bias": tensor(r, (out,), dtype)}
    return call("F.bilinear", *inputs, weight, within=within(r), **some(r, **bias))


def added(r: Random) -> Call:
    """``addmm``, ``addmv``, ``addbmm``, ``baddbmm`` and ``addr``, scaled and broadcast."""
    dtype = r.choice(DTYPES)
    n, m, p, b = (size(r, 4) for _ in range(4))
    name, left, right, result = r.choice(
        (
            ("addmm", (n, m), (m, p), (n, p)),
            ("addmv", (n, m), (m,), (n,)),
            ("addbmm", (b, n, m), (b, m, p), (n, p)),
            ("baddbmm", (b, n, m), (b, m, p), (b, n, p)),
            ("addr", (n,), (p,), (n, p)),
        )
    )
    numbers = (0, 1, 2) if dtype == "int64" else (0, 1, 0.5, 2)
    return call(
        f"torch.{name}",
        tensor(r, broadcast(r, result), dtype),
        tensor(r, left, dtype),
        tensor(r, right, dtype),
        within=within(r),
        **some(r, beta=r.choice(numbers), alpha=r.choice(numbers)),
    )


EQUATIONS = (
    ("ij,jk->ik", "ij", "jk"),
    ("bij,bjk->bik", "bij", "bjk"),
    ("...ij,...jk->...ik", "bij", "cbjk"),
    ("bhid,bhjd->bhij", "bhid", "bhjd"),
    ("i,j->ij", "i", "j"),
    ("ij,ij->", "ij", "ij"),
    ("ij,j", "ij", "j"),
    ("ii->i", "ii"),
    ("ij->ji", "ij"),
    ("bij->b", "bij"),
    ("bn,anm,bm->ba", "bn", "anm", "bm"),
    ("ijk,kj->i", "ijk", "kj"),
)


def einsum(r: Random) -> Call:
    """``einsum``; a size of 1 broadcasts."""
    equation, *operands = r.choice(EQUATIONS)
    dtype = r.choice(DTYPES)
    length = {letter: size(r, 3) for letter in "abchijkdnm"}
    shapes = [tuple(length[letter] for letter in operand) for operand in operands]
    inputs = [tensor(r, shape, dtype) for shape in shapes]
    return call("torch.einsum", equation, *inputs, within=within(r))


def others(r: Random) -> Call:
    """``bmm``, ``mv``, ``dot``, ``outer``, ``tensordot``, ``kron``, ``cdist``, ``chain_matmul``."""
    dtype = r.choice(DTYPES)
    n, m, p, b = (size(r, 4) for _ in range(4))
    name, shapes, extra = r.choice(
        (
            ("bmm", ((b, n, m), (b, m, p)), ()),
            ("mv", ((n, m), (m,)), ()),
            ("dot", ((n,), (n,)), ()),
            ("vdot", ((n,), (n,)), ()),
            ("outer", ((n,), (m,)), ()),
            ("inner", ((b, n), (p, n)), ()),
            ("tensordot", ((n, m, p), (m, p, b)), (2,)),
            ("kron", ((n, m), (p, b)), ()),
            ("cdist", ((b, n, m), (b, p, m)), (r.choice((0.0, 1.0, 2.0, 3.0, float("inf"))),)),
            ("cross", ((n, 3), (1, 3)), ()),
        )
    )
    inputs = [tensor(r, shape, dtype) for shape in shapes]
    return call(f"torch.{name}", *inputs, *extra, within=within(r))


CALLS = (matmul, matmul, matmul, linear, linear, bilinear, added, added, einsum, einsum, others)
