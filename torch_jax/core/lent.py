"""The placeholder in a storage whose memory is lent to a program that may overwrite it."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from torch_jax.budgets import ENTRIES_REMEMBERED


class Lent(NamedTuple):
    """A placeholder for an array that a program has taken: its form, and no elements.

    Other threads that meet one wait.
    """

    shape: tuple[int, ...]
    dtype: Any

    @property
    def size(self) -> int:
        """Return the number of elements of the array."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Return the number of dimensions of the array."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of the array."""
        return self.size * self.dtype.itemsize


@functools.lru_cache(ENTRIES_REMEMBERED)
def lent(shape: tuple[int, ...], dtype: Any) -> Lent:
    """Return the placeholder for an array of this form.

    >>> import numpy as np
    >>> lent((2, 3), np.dtype("float32")).nbytes
    24
    """
    return Lent(shape, dtype)
