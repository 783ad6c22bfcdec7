"""Arrays that have crossed the border to a user's JAX code, or from there: they are never donated.

A program may take the memory of an array that nothing else refers to. References say nothing of an
array that a user has held: ``jax.device_put`` and ``a.addressable_shards`` make other objects of
the same memory, which all are gone once one is donated. So such an array is marked as long as it
lives, and copied where it would be donated: once, since the result has a memory of its own.
"""

from __future__ import annotations

import weakref
from typing import Any

# Those that are alive, by their id; hot paths ask this dict themselves.
MARKED: dict[int, weakref.ref[Any]] = {}


def mark(array: Any) -> None:
    """Mark an array as never to be donated."""
    key = id(array)
    if key not in MARKED:
        MARKED[key] = weakref.ref(array, lambda _gone: MARKED.pop(key, None))


def is_marked(array: Any) -> bool:
    """Return whether this array has crossed the border."""
    return id(array) in MARKED
