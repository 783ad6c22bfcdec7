"""Memories in parts and the host: each part is copied by itself, and the whole is on no device.

A tensor that shows a box of its memory – the memory itself, a slice, a transpose – is read from the
parts that the box meets (:func:`read`), and a CPU tensor that is copied into it goes to these parts
and to no others (:func:`write`). No program is compiled for that. Other views are read and written
by programs, as those of memories on one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from torch_jax import target
from torch_jax.core.active import ACTIVE
from torch_jax.core.costs import TRAFFIC
from torch_jax.core.x64 import x64
from torch_jax.memory import dtypes, geometry, sharding, storage

Borrow = Callable[[jax.Array], torch.Tensor]
Slices = tuple[slice, ...]
_slice = jax.jit(jax.lax.dynamic_slice, static_argnums=2)
_update = jax.jit(jax.lax.dynamic_update_slice)


class Box(NamedTuple):
    """The elements that a tensor shows, as a box of its memory."""

    starts: tuple[int, ...]  # for each dimension of the memory
    lengths: tuple[int, ...]  # likewise
    # for each dimension of the tensor, that of the memory; None where the tensor's length is one
    along: tuple[int | None, ...]


class Piece(NamedTuple):
    """The common elements of a box and a part of the memory."""

    inside: Slices  # its place in the part
    at: Slices  # its place in the tensor
    arrays: list[jax.Array]  # the part, an array on each device that holds it


def is_split(array: Any) -> bool:
    """Return whether no device holds all of an array."""
    held = sharding.sharding_of(array)
    return held is not None and isinstance(array, jax.Array) and not held.is_fully_replicated


def is_wide(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies in parts, some of them on devices of other processes."""
    memory = storage.memory_of(tensor)
    return is_split(memory) and not memory.is_fully_addressable


def box_of(tensor: torch.Tensor, memory: jax.Array) -> Box | None:
    """Return the box of its memory that a tensor shows; None if that is no box, or other bits."""
    is_plain = dtypes.TO_JAX.get(tensor.dtype) == memory.dtype
    if not tensor.numel() or tensor.is_conj() or tensor.is_neg() or not is_plain:
        return None
    steps = geometry.row_major(memory.shape)
    by_step = {step: at for at, step in enumerate(steps) if memory.shape[at] > 1}
    along = [
        by_step.get(step, -1) if length > 1 else None
        for length, step in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    starts, rest = [0] * memory.ndim, int(tensor.storage_offset())
    for at, step in enumerate(steps):
        starts[at], rest = divmod(rest, step)
    lengths = [1] * memory.ndim
    for dimension, length in zip(along, tensor.shape, strict=True):
        if dimension is None:
            continue
        # no axis has this stride, or it wraps around, or two dims run along one (windows of unfold)
        if dimension < 0 or starts[dimension] + length > memory.shape[dimension]:
            return None
        if lengths[dimension] > 1:
            return None
        lengths[dimension] = length
    return Box(tuple(starts), tuple(lengths), tuple(along))


def boxes(tensor: torch.Tensor) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return starts and sizes of the parts that a tensor lies in, each once; whole if unsplit."""
    if storage.memory_if_any(tensor) is not None:
        memory = storage.memory_of(tensor)
        box = box_of(tensor, memory) if is_split(memory) else None
        if box is not None:
            return [
                (tuple(s.start for s in piece.at), tuple(s.stop - s.start for s in piece.at))
                for piece in _pieces(box, memory)
            ]
    return [((0,) * tensor.dim(), tuple(tensor.shape))]


def _pieces(box: Box, memory: jax.Array) -> Iterator[Piece]:
    """Yield the common elements of a box and each part, once however many devices hold the part."""
    parts: dict[tuple[tuple[int, int], ...], list[jax.Array]] = {}
    for shard in memory.addressable_shards:
        bounds = tuple(
            (part.start or 0, length if part.stop is None else part.stop)
            for part, length in zip(shard.index, memory.shape, strict=True)
        )
        parts.setdefault(bounds, []).append(shard.data)
    for bounds, arrays in sorted(parts.items(), key=lambda item: item[0]):
        common = [
            (max(first, start), min(last, start + length))
            for (first, last), start, length in zip(bounds, box.starts, box.lengths, strict=True)
        ]
        if all(low < high for low, high in common):
            inside = tuple(
                slice(low - first, high - first)
                for (low, high), (first, _) in zip(common, bounds, strict=True)
            )
            pairs = zip(common, box.starts, strict=True)
            found = [slice(low - start, high - start) for (low, high), start in pairs]
            at = tuple(slice(0, 1) if axis is None else found[axis] for axis in box.along)
            yield Piece(inside, at, arrays)


def _is_here(box: Box, memory: jax.Array) -> bool:
    """Return whether this process has all elements of a box."""
    sizes = [math.prod(s.stop - s.start for s in piece.inside) for piece in _pieces(box, memory)]
    return sum(sizes) == math.prod(box.lengths)


def _covers(inside: Slices, shape: Sequence[int]) -> bool:
    return all(s.stop - s.start == n for s, n in zip(inside, shape, strict=True))


def read(
    tensor: torch.Tensor, memory: jax.Array, borrow: Borrow, is_own: bool = False
) -> torch.Tensor | None:
    """Return a CPU copy of a tensor whose memory is split; None where the caller must find another.

    ``borrow`` gives the elements of an array as a flat CPU tensor, which is only read. Unless this
    process alone reads (``is_own``), all of them do, and must gather alike: then even elements that
    one process has are gathered.
    """
    box = box_of(tensor, memory) if is_split(memory) else None
    if box is None or not (memory.is_fully_addressable or (is_own and _is_here(box, memory))):
        return None
    stride = storage.dense_strides(tuple(tensor.shape), tensor.stride())
    host = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device="cpu")
    order = [at for at in box.along if at is not None]
    order += [at for at in range(memory.ndim) if at not in order]
    for piece in _pieces(box, memory):
        values = _cut(piece.arrays[0], piece.inside, borrow).permute(order)
        target = host[piece.at] if piece.at else host
        target.copy_(values.reshape(target.shape))
    return host


def _cut(part: jax.Array, inside: Slices, borrow: Borrow) -> torch.Tensor:
    """Return a slice of a part on the host; an accelerator sends no more than that."""
    if _covers(inside, part.shape) or target.on_cpu():
        host = borrow(part).view(part.shape)
        return host[inside] if inside else host
    lengths = tuple(s.stop - s.start for s in inside)
    with x64():
        cut = _slice(part, [s.start for s in inside], lengths)
    return borrow(cut).view(lengths)


def write(tensor: torch.Tensor, source: torch.Tensor) -> bool:
    """Copy a CPU tensor, cast, into one whose memory lies in parts; False: nothing was done."""
    if ACTIVE.tracer is not None or ACTIVE.recorder is not None or source.shape != tensor.shape:
        return False
    target = tensor.untyped_storage()
    if sharding.sharding_of(storage.held_by(tensor)) is None:
        return False
    source = source.detach()
    while True:
        memory = storage.memory_of(tensor)
        box = box_of(tensor, memory)
        if box is None or sharding.sharding_of(memory) is None:
            return False
        if storage.put_back((target,), (memory,), (_written(memory, box, source),)):
            return True


def _written(memory: jax.Array, box: Box, source: torch.Tensor) -> jax.Array:
    """Return a memory with the elements of a box replaced; parts outside the box are kept."""
    changed: dict[Any, jax.Array] = {}
    dtype = dtypes.to_torch(memory.dtype)
    ends = [math.inf if at is None else at for at in box.along]  # dims of length one come last
    by_dimension = sorted(range(len(ends)), key=ends.__getitem__)
    for piece in _pieces(box, memory):
        values = (source[piece.at] if piece.at else source).permute(by_dimension).to(dtype)
        lengths = [s.stop - s.start for s in piece.inside]
        host = np.array(dtypes.numpy_of(values.reshape(lengths)), order="C")  # an own copy
        for part in piece.arrays:
            TRAFFIC.to_device(host.nbytes)
            (device,) = part.devices()
            changed[device] = _changed(part, piece.inside, host, device)
    arrays = [changed.get(shard.device, shard.data) for shard in memory.addressable_shards]
    with x64():
        return jax.make_array_from_single_device_arrays(memory.shape, memory.sharding, arrays)


def _changed(part: jax.Array, inside: Slices, host: np.ndarray, device: Any) -> jax.Array:
    with x64():
        if _covers(inside, part.shape):
            return jax.device_put(host, device)
        if target.on_cpu():
            copy = np.array(jax.block_until_ready(part))
            copy[inside] = host
            return jax.device_put(copy, device)
        return _update(part, host, [s.start for s in inside])
