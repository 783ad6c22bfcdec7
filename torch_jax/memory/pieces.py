"""Random keys whose draws begin at some element: a long vector is drawn piece by piece.

JAX's random bits of element ``n`` depend on the key and on ``n`` alone
(https://docs.jax.dev/en/latest/jax.random.html, "partitionable"), so a program of one length draws
vectors of every length.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_jax._private import jax_core

_define_prng_impl, _threefry = jax_core.random_parts()


def beginning_at(key: Any, start: Any) -> Any:
    """Return a key that draws what ``key`` draws from an element on, given as two uint32 words.

    Draws have one dim, and not more than 2^32 elements.

    >>> key = jax.random.key(3)
    >>> later = beginning_at(key, jnp.array([0, 5], np.uint32))
    >>> jax.random.bits(later, (4,)).tolist() == jax.random.bits(key, (9,))[5:].tolist()
    True
    """
    data = jnp.concatenate([jax.random.key_data(key), start])
    return jax.random.wrap_key_data(data, impl=_generator())


@functools.cache
def _generator() -> Any:
    name = "threefry2x32 from an element on"
    options: dict[str, Any] = {"seed": None, "fold_in": None, "split": _split, "random_bits": _bits}
    return _define_prng_impl(key_shape=(4,), name=name, **options)


def _split(words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the words of keys that begin at the same element."""
    keys = jax.random.split(jax.random.wrap_key_data(words[:2], impl="threefry2x32"), shape)
    starts = jnp.broadcast_to(words[2:], (*shape, 2))
    return jnp.concatenate([jax.random.key_data(keys), starts], axis=-1)


def _bits(words: jax.Array, width: int, shape: tuple[int]) -> jax.Array:
    seed_high, seed_low, high, low = words
    at = jax.lax.iota(np.uint32, shape[0]) + low
    high, low = _threefry.bind(seed_high, seed_low, high + (at < low).astype(np.uint32), at)
    if width == 64:
        return high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
    return (high ^ low).astype(f"uint{width}")
