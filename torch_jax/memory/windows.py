"""Views that differ only in their start share one lens: the start is given at run time.

``x[0]``, ``x[1]``, … are views of the same sizes and strides. A lens with their starts in it would
make each of them another program, so a loop over rows would compile at every step. Here the starts
are taken out: :func:`place` returns the lens that all such views share, a number that names the
lens in keys, and the starts of the one view, which a program takes as an input.

>>> first, last = (place((4, 3), np.dtype("float32"), (3,), (1,), offset, np.dtype("float32"))
...                for offset in (0, 9))
>>> first.number == last.number, first.starts.tolist(), last.starts.tolist()
(True, [0, 0], [3, 0])
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any, TypeGuard

import jax
import numpy as np

from torch_jax.budgets import PLACES_REMEMBERED
from torch_jax.core.node import Integers, Node
from torch_jax.core.x64 import x64
from torch_jax.memory import geometry
from torch_jax.memory.geometry import Lens, Shape, Slice


class Place:
    """The place of a view in its memory.

    ``number`` and ``lens`` are shared by views that differ only in their start, and by no others;
    :func:`at` makes the lens of one. ``starts`` are those along each axis of the memory as the lens
    cuts it, None where the lens has no window; ``values`` are the same as integers of Python.
    """

    __slots__ = ("_was_given", "lens", "number", "starts", "values")

    def __init__(self, number: int, lens: Lens, starts: Any):
        self.number, self.lens, self.starts = number, lens, starts
        self.values = () if starts is None else tuple(starts.tolist())
        self._was_given = False

    def given(self) -> Any:
        """Return the starts; on the device if repeated, as NumPy's are copied at each call."""
        if type(self.starts) is np.ndarray:
            if self._was_given:
                with x64(), jax.ensure_compile_time_eval():  # other calls use them: never a tracer
                    self.starts = jax.device_put(self.starts)  # and nothing is compiled
            self._was_given = True
        return self.starts


_count = itertools.count()


@functools.lru_cache(PLACES_REMEMBERED)  # a loop over ever new offsets must not grow this
def place(shape: Shape, dtype, size: Shape, stride: Shape, offset: int, as_dtype) -> Place:
    """Return a view's place in a memory of ``shape`` and ``dtype``; see :func:`geometry.view`."""
    lens, starts = moving(geometry.view(shape, dtype, size, stride, offset, as_dtype))
    return Place(_number(shape, lens), lens, starts)


@functools.lru_cache(PLACES_REMEMBERED)
def _number(_shape: Shape, _lens: Lens) -> int:
    """Return a number that nothing else has had, even where it is forgotten."""
    return next(_count)


def moving(lens: Lens) -> tuple[Lens, Any]:
    """Return a lens without its starts, and the starts; None where it has none.

    Only the first slice of a lens starts at the view's offset: others cut the result of the first.
    A lens that pads is not changed, since its padding depends on the start.
    """
    if any(isinstance(step, geometry.Pad) for step in lens):
        return lens, None
    for at_, step in enumerate(lens):
        if isinstance(step, Slice):
            is_small = max(map(sum, zip(step.starts, step.extent, strict=True))) < 2**32
            starts = np.array(step.starts, np.uint32 if is_small else np.uint64)
            return (*lens[:at_], step._replace(starts=None), *lens[at_ + 1 :]), starts
    return lens, None


def at(lens: Lens, starts: Any) -> Lens:
    """Return the lens of the view at ``starts``: a plain slice if known, which XLA fuses."""
    if starts is None:
        return lens
    known = isinstance(starts, np.ndarray)
    found = tuple(starts.tolist() if known else (starts[i] for i in range(len(starts))))
    return tuple(step._replace(starts=found) if _is_moving(step) else step for step in lens)


def _is_moving(step: Any) -> TypeGuard[Slice]:
    return isinstance(step, Slice) and step.starts is None


def offset(lens: Lens, starts: Iterable[int], shape: Shape) -> int:
    """Return the start, in a flat memory of ``shape``, of the view that begins at ``starts``.

    It counts elements of the view's dtype.

    >>> row = place((4, 3), np.dtype("float32"), (3,), (1,), 6, np.dtype("float32"))
    >>> offset(row.lens, row.starts, (4, 3))
    6
    """
    for step in lens:
        if _is_moving(step):
            break
        shape = step.shape if isinstance(step, geometry.Reshape) else (1,)  # flat, as a Bitcast is
    strides = geometry.row_major(shape)
    return sum(int(start) * stride for start, stride in zip(starts, strides, strict=True))


def operand(memory: Any) -> Any:
    """Return a memory as a program takes it; one still to be computed is computed."""
    match memory:
        case Node():
            return memory.get()
        case Place():
            return memory.given()
        case Integers(values, is_list):
            return np.array(values, np.int64) if is_list else values[0]
    return memory
