"""Random keys of pieces of a draw: a vector of any length is drawn piece by piece.

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
from torch_jax.budgets import ELEMENTS_OF_A_PIECE

_define_prng_impl, _threefry = jax_core.random_parts()


def key_of(key: Any, number: Any) -> Any:
    """Return a key that draws what ``key`` draws from a piece on, whose number is a uint32.

    Draws have one dim.

    >>> key = jax.random.key(3)
    >>> whole = jax.random.bits(key, (ELEMENTS_OF_A_PIECE + 2,))
    >>> jax.random.bits(key_of(key, np.uint32(1)), (2,)).tolist() == whole[-2:].tolist()
    True
    """
    data = jnp.append(jax.random.key_data(key), number)
    return jax.random.wrap_key_data(data, impl=_generator())


@functools.cache
def _generator() -> Any:
    name = "threefry2x32 of a piece"
    options: dict[str, Any] = {"seed": None, "fold_in": None, "split": _split, "random_bits": _bits}
    return _define_prng_impl(key_shape=(3,), name=name, **options)


def _split(words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the words of keys of the same piece."""
    keys = jax.random.split(jax.random.wrap_key_data(words[:2], impl="threefry2x32"), shape)
    numbers = jnp.broadcast_to(words[2:], (*shape, 1))
    return jnp.concatenate([jax.random.key_data(keys), numbers], axis=-1)


def _bits(words: jax.Array, width: int, shape: tuple[int]) -> jax.Array:
    number, bits = words[2], np.uint32(ELEMENTS_OF_A_PIECE.bit_length() - 1)
    low = jax.lax.iota(np.uint32, shape[0]) + (number << bits)
    high = jnp.broadcast_to(number >> (np.uint32(32) - bits), shape)
    high, low = _threefry.bind(words[0], words[1], high, low)
    if width == 64:
        return high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
    return (high ^ low).astype(f"uint{width}")
