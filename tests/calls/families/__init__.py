"""The families of calls: each draws a call of one of its operators."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.calls.call import Call
from tests.calls.families import (
    attention,
    convolutions,
    creation,
    embeddings,
    indexing,
    losses,
    norms,
    pooling,
    products,
    recurrent,
    reductions,
    resampling,
    scattering,
)

Family = tuple[Callable[[random.Random], Call], ...]

FAMILIES: dict[str, Family] = {
    "attention": attention.CALLS,
    "convolutions": convolutions.CALLS,
    "creation": creation.CALLS,
    "embeddings": embeddings.CALLS,
    "indexing": indexing.CALLS,
    "losses": losses.CALLS,
    "norms": norms.CALLS,
    "pooling": pooling.CALLS,
    "products": products.CALLS,
    "recurrent": recurrent.CALLS,
    "reductions": reductions.CALLS,
    "resampling": resampling.CALLS,
    "scattering": scattering.CALLS,
}


def draw(family: str, seed: int) -> Call:
    """The call of a family with a number, the same whenever it is drawn."""
    r = random.Random(f"{family} {seed}")
    return r.choice(FAMILIES[family])(r)
