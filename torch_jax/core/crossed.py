"""Arrays that have crossed the border to a user's JAX code, or from there: they are never donated.

A program may take the memory of an array that nobody else holds, and counts references to find out.
Of an array that a user has had in his hands that tells nothing: ``jax.device_put``,
``a.addressable_shards`` and ``jax.make_array_from_single_device_arrays`` make other array objects
of the same memory, which all are gone once one of them is donated. So such an array is marked, for
as long as the object lives, and is copied where it would be donated: once, since what is written
then has a memory of its own.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

# Those that are alive, by their id; hot paths ask this dict themselves.
MARKED: dict[int, weakref.ref[Any]] = {}


def mark(array: Any) -> None:
    """Never donate this array."""
    key = id(array)
    if key not in MARKED:
        MARKED[key] = weakref.ref(array, functools.partial(_forget, key))


def _forget(key: int, _gone: Any) -> None:
    MARKED.pop(key, None)


def is_marked(array: Any) -> bool:
    """Whether this array has crossed the border.

    >>> import jax.numpy as jnp
    >>> given, own = jnp.ones(2), jnp.ones(2)
    >>> mark(given)
    >>> is_marked(given), is_marked(own)
    (True, False)
    """
    return id(array) in MARKED
