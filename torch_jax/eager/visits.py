"""Writes through windows that overlap: an element of memory is written several times, in order.

PyTorch refuses to write expanded tensors only. ``x.unfold(0, 2, 1).add_(1)`` it computes: the CPU's
loops visit one element after the other, and what is visited again is what the last visit wrote.
Here the first visits of all places are computed at once, then all second ones, and so on. An
operator that is no such loop, or that reads the same memory elsewhere, is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_jax.eager import variants
from torch_jax.memory import geometry
from torch_jax.ops.registry import Lowering

_WRITE = "torch_jax::write_"  # what ``copy_`` becomes
# Loops over elements that PyTorch has not tagged as such.
_UNTAGGED = frozenset(
    {"aten::hardswish_", "aten::masked_fill_.Tensor", "aten::floor_divide_.Tensor"}
)
_FLAT = geometry.Reshape((-1,))
REFUSAL = (
    "unsupported operation: more than one element of the written-to tensor refers to a single "
    "memory location. Please clone() the tensor before performing the operation."
)


class Place(NamedTuple):
    """Where a tensor argument lies: the slot of its memory and its geometry."""

    slot: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: np.dtype


class Visits(NamedTuple):
    """In which order the elements of a view are written.

    Attributes:
      positions: of each element in the flat memory.
      earlier: how often the element's place has been visited before.
      last: whether no later element has its place.
      most: how often the place is visited that is visited most.
      each: whether each visit sees what the one before it wrote; else only the last one counts.
    """

    positions: np.ndarray
    earlier: np.ndarray
    last: np.ndarray
    most: int
    each: bool

    def in_turns(self, run: Callable[..., Any], slots: list[int], checked: bool) -> Callable:
        """``run``, which writes the memories of ``slots``, once for each visit of a place."""

        def turns(*given: Any) -> list[Any]:
            if not self.each:
                return run(*given, write=self._writer(self.last))

            def turn(number: Any, carried: list[Any]) -> list[Any]:
                memories = list(given)
                for slot, memory in zip(slots, carried, strict=False):
                    memories[slot] = memory
                results = run(*memories, write=self._writer(self.earlier == number))
                return [*results[:-1], carried[-1] & results[-1]] if checked else results

            carried = [jnp.asarray(given[slot]) for slot in slots]
            carried += [jnp.asarray(True)] * checked
            return lax.fori_loop(0, self.most, turn, carried)

        return turns

    def _writer(self, chosen: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
        """What writes those elements of a value that are chosen, which share no place."""

        def write(memory: jax.Array, value: jax.Array) -> jax.Array:
            bits = (geometry.Bitcast(value.dtype),) if value.dtype != memory.dtype else ()
            flat = geometry.read(memory, bits).reshape(-1)
            at = jnp.where(chosen, self.positions, flat.size)
            return geometry.write(memory, (*bits, _FLAT), flat.at[at].set(value, mode="drop"))

        return write


def of(
    op: Any, lowering: Lowering, written: Sequence[Place], operands: Sequence[Place]
) -> Visits | None:
    """The visits of the one view that a call writes; None where no two elements share a place.

    ``operands`` are all tensor arguments, in order.
    """
    shared = [view for view in written if may_overlap(view.size, view.stride)]
    if lowering.uniform or not shared:
        return None
    first = shared[0]
    others = [view for view in operands if view != first]
    order = _order([first, *others])
    visits = _visits(first.size, first.stride, first.offset, order, _sees_earlier(op, lowering))
    if visits.most < 2:
        return None
    elsewhere = any(view.slot == first.slot for view in others)
    if elsewhere or len(written) > 1 or not _loops(op, lowering):
        raise RuntimeError(f"{REFUSAL} (in {op})")
    return visits


def _loops(op: Any, lowering: Lowering) -> bool:
    """Whether the CPU computes an operator element by element, or only the last value counts."""
    if op.name() in (_WRITE, *_UNTAGGED) or lowering.random:
        return True
    functional = variants.functional_of(op)
    tags = [*op.tags, *(functional.tags if functional is not None else ())]
    return torch.Tag.pointwise in tags


def _sees_earlier(op: Any, lowering: Lowering) -> bool:
    return not (op.name() == _WRITE or lowering.random)


def may_overlap(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements may share a place: some step does not go beyond all shorter ones.

    Expanded tensors, of stride 0, are refused elsewhere.
    """
    extent = 0
    if 0 in size:
        return False
    for n, step in sorted(zip(size, stride, strict=True), key=lambda dim: dim[1]):
        if n > 1 and step == 0:
            return False
        if n > 1 and step <= extent:
            return True
        extent += (n - 1) * step
    return False


@functools.lru_cache(maxsize=64)
def _visits(size: tuple, stride: tuple, offset: int, order: tuple, each: bool) -> Visits:
    """The visits of a view whose dims are gone through in ``order``, the slowest first."""
    positions = np.full(size, offset, np.int64)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        positions += np.arange(n).reshape([n if d == axis else 1 for d in range(len(size))]) * step
    visited = positions.transpose(order).reshape(-1)
    by_place = np.argsort(visited, kind="stable")
    begins = np.flatnonzero(np.diff(visited[by_place], prepend=-1))
    lengths = np.diff(begins, append=visited.size)
    rank = np.arange(visited.size) - np.repeat(begins, lengths)
    earlier, last = np.empty(visited.size, np.int64), np.zeros(visited.size, bool)
    earlier[by_place] = rank
    last[by_place[begins + lengths - 1]] = True
    shape = [size[axis] for axis in order]
    back = np.argsort(order)
    ranks, ends = (x.reshape(shape).transpose(back) for x in (earlier, last))
    return Visits(positions, ranks, ends, int(lengths.max()), each)


def _order(operands: Sequence[Place]) -> tuple[int, ...]:
    """The dims of the first operand as the CPU's loops nest, the outermost first.

    It is the sort of ``TensorIterator``: by the strides of the first operand that tells.
    """
    size = operands[0].size
    strides = [_broadcast(view, size) for view in operands if len(view.size) <= len(size)]
    order = list(reversed(range(len(size))))  # the innermost first
    for i in range(1, len(order)):
        at = i
        for before in reversed(range(i)):
            compared = _compare(order[before], order[at], size, strides)
            if compared > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif compared < 0:
                break
    return tuple(reversed(order))


def _compare(one: int, other: int, size: Sequence[int], strides: list[list[int]]) -> int:
    """Whether a dim goes outside of another (1) or inside (-1); 0 where nothing tells."""
    for stride in strides:
        if stride[one] == 0 or stride[other] == 0:
            continue
        if stride[one] != stride[other]:
            return 1 if stride[one] > stride[other] else -1
        if size[one] > size[other]:
            return 1
    return 0


def _broadcast(view: Place, size: Sequence[int]) -> list[int]:
    """The strides of an operand along the dims of the first, 0 where it is repeated."""
    missing = len(size) - len(view.size)
    own = zip(view.size, view.stride, size[missing:], strict=True)
    return [0] * missing + [0 if n == 1 != whole else step for n, step, whole in own]
