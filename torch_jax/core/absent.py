"""Arrays of chips that are elsewhere: they have a form, and no elements.

Where programs are compiled for a target, nothing can run: each tensor of the device holds one of
these. A program that looks at a single number is given 0, and the place is noted
(:data:`LOOKS`), since scripts print losses. Anything else that needs elements is refused.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from torch_jax import target
from torch_jax.core import tracers

LOOKS: dict[str, str] = {}
"""Lines of the user's at which a number was looked at, and the dtype and shape of its tensor."""


_MADE: Any = None  # in each object


class Absent(jax.Array):
    """An array of a target: shape, dtype and sharding, and no elements.

    >>> from torch_jax import config
    >>> Absent((2, 3), np.dtype("float32")).nbytes
    24
    """

    committed = weak_type = False
    # jax.Array has properties of these names, which cannot be set
    aval = shape = dtype = sharding = ndim = size = itemsize = nbytes = _MADE

    def __init__(self, shape: tuple[int, ...], dtype: Any, sharding: Any = None):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.ndim, self.size = len(self.shape), math.prod(self.shape)
        self.itemsize = self.dtype.itemsize
        self.nbytes = self.size * self.itemsize
        self.aval = jax.core.ShapedArray(self.shape, self.dtype)
        self.sharding = sharding or SingleDeviceSharding(jax.local_devices()[0])

    def devices(self) -> set[Any]:
        return self.sharding.device_set

    def is_deleted(self) -> bool:
        """Return False: nothing is ever written over."""
        return False

    def block_until_ready(self) -> Absent:
        return self

    def __array__(self, *_dtype: Any, **_copy: Any) -> np.ndarray:
        return elements(self)

    def __jax_array__(self) -> Any:
        raise refusal(f"a {tracers.shown(self)} tensor is asked for by JAX")

    def __repr__(self) -> str:
        return f"Absent({tracers.shown(self)}, {self.sharding})"


def is_chosen() -> bool:
    """Return whether programs are compiled for a target, so that new arrays are absent."""
    return target.chosen() is not None


def elements(array: Any) -> np.ndarray:
    """Return 0 for a single number, and note the line that reads it; refuse other arrays."""
    if array.size != 1:
        raise refusal(f"the elements of a {tracers.shown(array)} tensor are asked for")
    LOOKS.setdefault(tracers.user_line(), tracers.shown(array))
    return np.zeros(array.shape, array.dtype)


def refusal(what: str) -> tracers.DataDependentError:
    """Return the error of a program that needs the elements of an array."""
    chosen = target.chosen()
    name = "a target" if chosen is None else chosen.name
    return tracers.DataDependentError(
        f"{what}, and nothing is computed while programs are compiled for {name} "
        f"({tracers.user_line()}). Stop before that line (--steps), or leave it out."
    )
