"""The placeholder in a storage whose memory is lent to a program that may overwrite it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.core.node import Sized


@dataclasses.dataclass(frozen=True, eq=False)
class Lent(Sized):
    """A placeholder for an array that a program has taken: its form, and no elements.

    Other threads that meet one wait.
    """

    shape: tuple[int, ...]
    dtype: Any


@functools.lru_cache(ENTRIES_REMEMBERED)
def lent(shape: tuple[int, ...], dtype: Any) -> Lent:
    """Return the placeholder for an array of this form.

    >>> import numpy as np
    >>> lent((2, 3), np.dtype("float32")).nbytes
    24
    """
    return Lent(shape, dtype)
