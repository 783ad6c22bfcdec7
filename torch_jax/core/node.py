"""Placeholders in a storage, of a memory that is yet to be computed, or lent to a program."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Sized:
    """An array's number of elements, dimensions and bytes, from its shape and dtype."""

    __slots__ = ()

    shape: tuple[int, ...]
    dtype: Any

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


class Node(Sized):
    """An array that is yet to be computed: its form, and the recording that will compute it.

    Code that needs elements calls :meth:`get`. Every way to the memory of a storage does
    (:func:`torch_jax.memory.storage.memory_in`), but for those that ask for its form only.
    """

    __slots__ = ("__weakref__", "array", "aval", "dtype", "index", "recording", "shape")

    array: Any  # once it has been computed; then ``recording`` is None

    def __init__(self, aval: Any, shape: tuple[int, ...], dtype: Any, recording: Any, index: int):
        self.aval, self.shape, self.dtype = aval, shape, dtype
        self.recording, self.index = recording, index

    def get(self) -> Any:
        """Return the array; runs its recording for that, on any thread."""
        if (recording := self.recording) is not None:
            recording.run()
        return self.array


class Lent(Sized):
    """A placeholder for an array that a program has taken: its form, and no elements.

    The program may overwrite the array. Other threads that meet a placeholder wait.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any):
        self.shape, self.dtype = shape, dtype


class Integers(NamedTuple):
    """Integers that an operator takes as an input, though they change little from run to run."""

    values: tuple[int, ...]
    is_list: bool


class NotRecordable(Exception):
    """An operator has to run at once: it is in a trace of the user's, or cannot be traced."""
