"""The storage of a jax tensor, and how tensors are made of arrays and read back as arrays.

A jax tensor is a plain ``torch.Tensor`` whose storage carries a ``jax.Array``. The array belongs to
the storage, never on the tensor object, because every alias shares the storage while tensor
objects come and go (``detach``, ``.data``, saved-for-backward, parameters).
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import operator
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_jax._private import pytorch
from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.core import forks, tracers
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Lent, Node
from torch_jax.core.x64 import x64
from torch_jax.memory import dtypes, geometry, sharding, windows

# Types of tensors that behave as PyTorch says; subclasses may not.
PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))

# The alias of a tensor with another size, stride and offset; bounds are not checked.
restride = pytorch.redispatched(torch.ops.aten.as_strided.default, pytorch.META_KEYS)


def is_jax_storage(storage: Any) -> bool:
    """Return whether a storage is one of the device: it holds an array, or its predecessor."""
    held = storage.__dict__
    return "array" in held or "host" in held


def nbytes_of(storage: Any) -> int:
    """Return the size of a storage of the device in bytes."""
    if (held := storage.__dict__.get("host")) is not None:
        return held.nbytes
    array = storage.array  # whose own ``nbytes`` takes three times as long
    return math.prod(array.shape) * array.dtype.itemsize


def wrap(array: jax.Array, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a contiguous tensor on device ``jax`` that takes ``array`` as its memory, uncopied.

    >>> import jax.numpy as jnp
    >>> wrap(jnp.ones((2, 3))).shape
    torch.Size([2, 3])
    """
    tensor = pytorch.create_empty_tensor(array.shape, dtype or dtypes.to_torch(array.dtype))
    storage: Any = tensor.untyped_storage()
    storage.array = array
    if array.size == 0:  # C++ counts a length of zero as zero here, elsewhere as one
        return restride(tensor, array.shape, geometry.row_major(array.shape), 0)
    return tensor


def is_jax(tensor: torch.Tensor) -> bool:
    """Return whether the tensor lives on device ``jax``."""
    return is_jax_storage(tensor.untyped_storage())


def is_jax_tensor(value: Any) -> bool:
    """Return whether a value is a tensor with a memory on device ``jax``: not a sparse one."""
    return isinstance(value, torch.Tensor) and pytorch.has_storage(value) and is_jax(value)


def memory_of(tensor: torch.Tensor) -> jax.Array:
    """Return the whole memory behind ``tensor``, whichever part of it the tensor shows."""
    return memory_in(tensor.untyped_storage())


def memory_in(storage: Any) -> jax.Array:
    """Return the memory of a storage; wait where another thread has lent it to a program."""
    array = storage.array
    while isinstance(array, jax.core.Tracer | Lent) and tracers.is_traced_elsewhere((array,)):
        if type(array) is Lent:
            forks.refuse()  # in a child, the thread that would give it back does not exist
            time.sleep(1e-5)
            array = storage.array
            continue
        raise tracers.outlived(f"a {tracers.shown(array)} tensor")
    if type(array) is Node:
        known = array.get()
        return known if put_back((storage,), (array,), (known,)) else memory_in(storage)
    return array


def held_by(tensor: torch.Tensor) -> Any:
    """Return the object in the storage of a tensor, for its form: a memory, or a node."""
    return tensor.untyped_storage().array  # type: ignore[attr-defined]


# Held while memories are compared and replaced, for less than a microsecond. A finalizer that
# writes to a tensor may run then, on the same thread.
PUTTING = threading.RLock()

_array, _ARRAY = operator.attrgetter("array"), itertools.repeat("array")
_exhaust = collections.deque(maxlen=0).extend  # type: ignore[var-annotated]


def put_back(storages: Sequence[Any], before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Give storages new memories, if each still holds the one that its new one was computed from.

    This is the only way by which a write reaches a storage that other threads may know. Where
    another thread has written meanwhile nothing happens, and the caller computes again: False.
    """
    if sharding.Use.begun:
        after = sharding.kept(before, after)
    with PUTTING:
        is_done = all(map(operator.is_, map(_array, storages), before))
        if is_done:
            give_back(storages, after)
    if ACTIVE.observer is not None:
        ACTIVE.observer.writes(storages, before, is_done)
    return is_done


def give_back(storages: Sequence[Any], arrays: Sequence[Any]) -> None:
    """Give storages arrays in place of tracers of this thread; no other thread replaces those.

    It is one call of C: a signal comes before it or after it.
    """
    _exhaust(map(setattr, storages, _ARRAY, arrays))


def replace(storage: Any, array: jax.Array) -> None:
    """Give a storage a new memory in place of any object that it holds."""
    while not put_back((storage,), (memory_in(storage),), (array,)):
        pass


def memory_if_any(tensor: torch.Tensor) -> Any:
    """Return what the storage of a tensor holds, a CPU tensor too; None for fakes and wrappers."""
    try:
        storage: Any = tensor.untyped_storage()
        held = storage.__dict__.get("host")
        return storage.array if held is None else held
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value: itself, or those in lists, tuples and dicts, at any depth.

    >>> [t.item() for t in tensors_in((torch.tensor(1), {"x": [torch.tensor(2), 3]}))]
    [1, 2]
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one)


def is_whole(tensor: torch.Tensor, memory: jax.Array) -> bool:
    """Return whether a tensor's elements are its memory unchanged: shape, order and dtype.

    Keys of calls may then leave the geometry out, and check three things, not four: XLA's
    executables check the dtype of a memory. The offset is one of the three, since ``torch.ones(1,
    dtype=torch.complex64).imag`` has the shape of its memory and is contiguous.
    """
    return (
        tensor.shape == memory.shape
        and tensor.is_contiguous()
        and not tensor.storage_offset()
        and dtypes.TO_JAX.get(tensor.dtype) == memory.dtype
    )


def place_of(tensor: torch.Tensor, memory: jax.Array) -> windows.Place:
    """Return the place of ``tensor`` in ``memory``."""
    form = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    return windows.place(memory.shape, memory.dtype, *form, dtypes.to_jax(tensor.dtype))


@functools.lru_cache(ENTRIES_REMEMBERED)
def dense_strides(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides of a copy in ``torch.preserve_format``: the same if dense, else in order.

    >>> dense_strides((2, 2), (1, 6))
    (1, 2)
    """
    if geometry.memory_order(size, stride) is not None:
        return tuple(stride)
    return torch.empty_like(torch.empty_strided(size, stride, device="meta")).stride()


def span(size, stride, offset: int) -> int:
    """Return the number of elements that a geometry reaches, from the start of the storage."""
    if 0 in size:
        return 0
    return offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def resize(storage: Any, nbytes: int) -> None:
    """Make the storage ``nbytes`` long, keeping its leading bytes; new ones are zero."""
    old: Any = storage.array if type(storage.array) is Node else memory_in(storage)
    count, rest = divmod(nbytes, old.dtype.itemsize)
    if not rest:  # by an operator, to be recorded
        new = held_by(torch.constant_pad_nd(wrap(old).view(-1), (0, count - old.size)))
    else:
        old = memory_in(storage)
        with x64():
            flat = geometry.bitcast(old.reshape(-1), np.dtype(np.uint8))[:nbytes]
            new = jnp.pad(flat, (0, nbytes - flat.size))
    if not put_back((storage,), (old,), (new,)):
        resize(storage, nbytes)
