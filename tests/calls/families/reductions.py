"""Reductions, softmax and scans, with dims, ``keepdim`` and ``dtype``."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.calls.call import FLOATS, Call, Code, call, chance, sizes, some, tensor, within

DTYPES = (*FLOATS, "int64", "bool", "complex64", "int32", "uint8")
REAL = (*FLOATS, "int64", "bool", "int32", "uint8")


def _dim(r: Random, rank: int) -> int:
    if chance(r, 0.02):
        return rank + 1
    return r.randrange(-rank, rank) if rank else r.choice((0, -1))


def _dims(r: Random, rank: int) -> Any:
    """One dim, several, or none of them."""
    if chance(r, 0.5):
        return _dim(r, rank)
    return tuple(r.sample(range(rank), r.randint(0, rank)))


def _dtype(r: Random) -> dict[str, Any]:
    if chance(r, 0.75):
        return {}
    return {
        "dtype": Code(f"torch.{r.choice(('float32', 'float64', 'bfloat16', 'int64', 'int32'))}")
    }


def sums(r: Random) -> Call:
    """Reductions over several dims."""
    shape, name = sizes(r, r.randint(0, 4), 4), r.choice(("sum", "mean", "nansum", "amax", "amin"))
    dtype = r.choice(DTYPES if name in ("sum", "mean") else REAL)
    options = some(r, keepdim=chance(r, 0.5))
    options |= _dtype(r) if name in ("sum", "mean", "nansum") else {}
    values = r.choice(("normal", "ties"))
    x = tensor(r, shape, dtype, values)
    dims = [] if chance(r, 0.2) and not options.get("keepdim") else [_dims(r, len(shape))]
    options = {} if not dims and "keepdim" in options else options
    return call(f"torch.{name}", x, *dims, within=within(r), **options)


def one_dim(r: Random) -> Call:
    """Reductions and scans over one dim."""
    shape = sizes(r, r.randint(0, 3), 4)
    name = r.choice(("prod", "cumsum", "cumprod", "any", "all", "argmax", "argmin", "logcumsumexp"))
    dtype = r.choice(REAL if name[:3] == "arg" else FLOATS if name[:3] == "log" else DTYPES)
    options = (
        some(r, keepdim=chance(r, 0.5))
        if name in ("prod", "any", "all", "argmax", "argmin")
        else {}
    )
    options |= _dtype(r) if name in ("prod", "cumsum", "cumprod") else {}
    x = tensor(r, shape, dtype, r.choice(("normal", "ties")))
    return call(f"torch.{name}", x, _dim(r, len(shape)), within=within(r), **options)


def moments(r: Random) -> Call:
    """``var``, ``std``, ``var_mean`` and ``std_mean``."""
    shape, dtype = sizes(r, r.randint(0, 3), 4), r.choice((*FLOATS, "complex64"))
    name = r.choice(("var", "std", "var_mean", "std_mean"))
    options = {"dim": _dims(r, len(shape)), **some(r, keepdim=True, correction=r.choice((0, 1, 2)))}
    return call(f"torch.{name}", tensor(r, shape, dtype), within=within(r), **options)


def softmax(r: Random) -> Call:
    """``softmax``, ``log_softmax``, ``softmin`` and ``logsumexp``."""
    shape, dtype = (
        sizes(r, r.randint(0, 4), 4),
        r.choice((*FLOATS, "int64") if chance(r, 0.2) else FLOATS),
    )
    values = "rows" if chance(r, 0.2) and len(shape) > 1 and dtype != "int64" else "normal"
    x = tensor(r, shape, dtype, values)
    if chance(r, 0.3):
        options = some(r, keepdim=True)
        return call("torch.logsumexp", x, _dims(r, len(shape)), within=within(r), **options)
    name = r.choice(("softmax", "log_softmax", "softmin"))
    return call(f"F.{name}", x, dim=_dim(r, len(shape)), within=within(r), **_dtype(r))


def chosen(r: Random) -> Call:
    """Reductions that name what they chose: ``max``, ``median``, ``cummax``, ``aminmax``."""
    shape, dtype = sizes(r, r.randint(0, 3), 4), r.choice(REAL)
    name = r.choice(("max", "min", "median", "nanmedian", "cummax", "cummin", "aminmax"))
    x = tensor(r, shape, dtype)
    if name == "aminmax":
        options = some(r, dim=_dim(r, len(shape)), keepdim=True)
        return call("torch.aminmax", x, within=within(r), **options)
    if chance(r, 0.3) and name in ("max", "min", "median", "nanmedian"):
        return call(f"torch.{name}", x, within=within(r))
    options = some(r, keepdim=True) if name[:3] != "cum" else {}
    return call(f"torch.{name}", x, _dim(r, len(shape)), within=within(r), **options)


CALLS = (sums, sums, sums, one_dim, one_dim, moments, softmax, softmax, softmax, chosen)
