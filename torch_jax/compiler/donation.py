"""The pairs of results and donated arrays: a result takes the memory of its array.

JAX pairs donated arguments with results of their form, the first with the first. A result that is
computed while the array is still read cannot be written over it: XLA then copies the array first.
So results are ordered such that each donated array is paired with its successor.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from torch_jax._private import jax_core
from torch_jax.core import crossed
from torch_jax.core.x64 import x64

R = TypeVar("R", bound=Hashable)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Silence JAX where no result takes the memory of a donated array."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        yield


def order(
    results: Sequence[R],
    form: Callable[[R], Hashable],
    donated: Sequence[tuple[Hashable, R | None]],
) -> list[R]:
    """Return the results, first those that take the memory of arguments, in the order of these.

    ``donated`` has the form of each donated argument, in order, and the result that is to take its
    memory: None, or one that is no result, where any of that form will do.

    >>> order(["gradient", "new"], lambda name: (3,), [((3,), "new")])
    ['new', 'gradient']
    """
    left = dict.fromkeys(results)
    heirs: list[R | None] = []
    for of, heir in donated:
        found = heir if heir in left and form(heir) == of else None
        if found is not None:
            del left[found]
        heirs.append(found)
    others: dict[Hashable, list[R]] = {}
    for one in reversed(left):
        others.setdefault(form(one), []).append(one)
    for at, (of, _) in enumerate(donated):
        if heirs[at] is None and others.get(of):
            heirs[at] = another = others[of].pop()
            del left[another]
    return [one for one in heirs if one is not None] + list(left)


def copy_of(array: jax.Array) -> jax.Array:
    """Return a copy of an array, in memory of XLA's own.

    JAX compiles no program for it, unless the array is spread over several processes: those are
    refused by ``device_put``.

    >>> given = jax.numpy.ones(3)
    >>> copy_of(given).unsafe_buffer_pointer() == given.unsafe_buffer_pointer()
    False
    """
    with x64():
        if array.is_fully_addressable:
            return jax.device_put(array, may_alias=False)
        return jnp.array(array, copy=True)


# The count that sys.getrefcount returns in ``copy_shared`` for an array without other holders: the
# list of arrays, and the argument of getrefcount itself.
_ALONE = 2


def copy_shared(arrays: list[Any], donated: Collection[int]) -> None:
    """Copy each array at the places ``donated`` of a program's inputs that has other holders too.

    An executable writes its results over donated arrays, which only the storage of the result may
    have held (:mod:`torch_jax.memory.lending`), and no user (:mod:`torch_jax.core.crossed`). A
    clone shares an array until one of the two is written: reference counts show that, so that the
    caller must hold the arrays in ``arrays`` alone.
    """
    jax_core.free_seen()  # what PyTorch has seen counts as held until then
    are_marked = bool(crossed.MARKED)  # nearly always no array is
    for at in donated:
        if sys.getrefcount(arrays[at]) > _ALONE or (are_marked and crossed.is_marked(arrays[at])):
            arrays[at] = copy_of(arrays[at])
