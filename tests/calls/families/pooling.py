"""Pooling: largest, mean, of a power, adaptive, and the way back from indices."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.calls.call import FLOATS, Call, call, chance, size, some, tensor, within

# Of equal elements in a window the first counts: "ties" has many.
VALUES = ("normal", "normal", "ties")


def _shape(r: Random, rank: int, least: int = 1) -> tuple[int, ...]:
    spatial = tuple(r.randint(least, least + 4) if chance(r, 0.97) else 0 for _ in range(rank))
    batch = () if chance(r, 0.2) else (size(r, 3),)
    return (*batch, size(r, 3), *spatial)


def _numbers(r: Random, rank: int, choices: tuple[int, ...]) -> Any:
    return r.choice(choices) if chance(r, 0.5) else tuple(r.choice(choices) for _ in range(rank))


def largest(r: Random) -> Call:
    """``max_pool1d`` to ``max_pool3d``, with indices or without."""
    rank = r.choice((1, 2, 2, 3))
    options = some(
        r,
        stride=_numbers(r, rank, (1, 2, 3)),
        padding=_numbers(r, rank, (0, 1)),
        dilation=_numbers(r, rank, (1, 2)),
        ceil_mode=chance(r, 0.5),
        return_indices=chance(r, 0.5),
    )
    dtype = r.choice((*FLOATS, "int64") if rank == 2 else FLOATS)
    x = tensor(r, _shape(r, rank), dtype, r.choice(VALUES))
    return call(f"F.max_pool{rank}d", x, _numbers(r, rank, (1, 2, 3)), within=within(r), **options)


def mean(r: Random) -> Call:
    """``avg_pool1d`` to ``avg_pool3d``, by each of their ways to count."""
    rank = r.choice((1, 2, 2, 3))
    options = some(
        r,
        stride=_numbers(r, rank, (1, 2, 3)),
        padding=_numbers(r, rank, (0, 1)),
        ceil_mode=chance(r, 0.5),
        count_include_pad=chance(r, 0.5),
    )
    options |= some(r, divisor_override=3) if rank > 1 else {}
    x = tensor(r, _shape(r, rank), r.choice(FLOATS))
    return call(f"F.avg_pool{rank}d", x, _numbers(r, rank, (1, 2, 3)), within=within(r), **options)


def power(r: Random) -> Call:
    """``lp_pool1d`` to ``lp_pool3d``."""
    rank = r.choice((1, 2, 3))
    options = some(r, stride=_numbers(r, rank, (1, 2)), ceil_mode=True)
    x = tensor(r, _shape(r, rank, 2), r.choice(FLOATS), "positive")
    kernel = _numbers(r, rank, (1, 2)) if rank > 1 else r.choice((1, 2))
    return call(f"F.lp_pool{rank}d", x, r.choice((1, 2, 3.0)), kernel, within=within(r), **options)


def adaptive(r: Random) -> Call:
    """Adaptive pooling to sizes that do not divide, that are larger, or that stay (``None``)."""
    rank = r.choice((1, 2, 2, 3))
    sizes = (1, 2, 3, 4) if rank == 1 else (1, 2, 3, 4, None)
    output = r.choice((1, 2, 3)) if chance(r, 0.4) else tuple(r.choice(sizes) for _ in range(rank))
    kind = r.choice(("avg", "max"))
    options = some(r, return_indices=True) if kind == "max" else {}
    x = tensor(r, _shape(r, rank), r.choice(FLOATS), r.choice(VALUES))
    return call(f"F.adaptive_{kind}_pool{rank}d", x, output, within=within(r), **options)


def back(r: Random) -> Call:
    """``max_unpool``, of the indices that pooling gives."""
    rank = r.choice((1, 2, 3))
    shape = _shape(r, rank, 2)
    x = tensor(r, shape, r.choice(("float32", "float64")))
    made = call(f"F.max_pool{rank}d", x, 2, return_indices=True)
    text = f"F.max_unpool{rank}d(*{made.expression}, 2)"
    return made._replace(expression=text, within=within(r))


CALLS = (largest, largest, largest, mean, mean, mean, adaptive, adaptive, power, back)
