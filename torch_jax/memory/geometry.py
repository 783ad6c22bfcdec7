"""Geometry: reads and writes of ``(size, stride, offset)`` over a storage with XLA ops.

A storage holds its memory as one array, whose row-major flattening PyTorch calls the
storage. A view of it is a :class:`Lens`: a short list of steps, each of which reads its part out
of an array (slice, reshape, transpose, broadcast) and can put a changed part back. So a write
through any view is the same steps backwards, and the whole is one expression for XLA to fuse.

``plan`` finds the steps. It tries four shapes for the memory, in order: the shape the array has,
with axes split where the view splits them; that shape unchanged; the mixed-radix shape that the
view's own strides spell; and the flat one. Where none fits (windows that overlap, such as
``unfold``), a gather is the last resort, and is counted in ``GATHERS``.

>>> import numpy as np, jax.numpy as jnp
>>> memory = jnp.arange(6).reshape(2, 3)
>>> plan((2, 3), (3, 2), (1, 3), 0)          # memory.T
(Permute(order=(1, 0)),)
>>> np.asarray(read(memory, plan((2, 3), (2, 2), (3, 1), 1)))   # memory[:, 1:]
array([[1, 2],
       [4, 5]]...)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

GATHERS: Counter[tuple] = Counter()  # (size, stride) of each view that needed a gather

Shape = tuple[int, ...]


# The steps of a lens: ``read`` returns the part of an array that a step looks at, and ``write``
# returns the array with that part replaced.


class Reshape(NamedTuple):
    """Row-major reshape to ``shape``."""

    shape: Shape

    def read(self, x):
        return x.reshape(self.shape)

    def write(self, x, part):
        return part.reshape(x.shape)


class Permute(NamedTuple):
    """Transpose of the axes."""

    order: Shape

    def read(self, x):
        return x.transpose(self.order)

    def write(self, x, part):
        return part.transpose(np.argsort(self.order))


class Slice(NamedTuple):
    """``x[start:start + extent:step]`` along each axis.

    The starts are numbers, or traced ones (:func:`torch_jax.memory.windows.at`). PyTorch has
    checked that the view lies within its memory, so JAX's clamping never acts.
    """

    starts: Any
    extent: Shape
    steps: Shape

    def read(self, x):
        if self._is_known():
            limits = [start + n for start, n in zip(self.starts, self.extent, strict=True)]
            return lax.slice(x, self.starts, limits, self.steps)
        part = lax.dynamic_slice(x, self.starts, self.extent)
        return self._inner().read(part) if self._has_steps() else part

    def write(self, x, part):
        if not self._is_known():
            if self._has_steps():
                part = self._inner().write(lax.dynamic_slice(x, self.starts, self.extent), part)
            return lax.dynamic_update_slice(x, part, self.starts)
        if not self._has_steps():
            return lax.dynamic_update_slice(x, part, [np.int32(s) for s in self.starts])
        # a strided write is a select under a constant mask: no scatter
        dims = zip(self.starts, self.steps, x.shape, part.shape, strict=True)
        interior = [(at, size - at - (n - 1) * step - 1, step - 1) for at, step, size, n in dims]
        mask = lax.pad(jnp.ones(part.shape, bool), jnp.zeros((), bool), interior)
        return jnp.where(mask, lax.pad(part, jnp.zeros((), part.dtype), interior), x)

    def _is_known(self) -> bool:
        return all(isinstance(start, int | np.integer) for start in self.starts)

    def _has_steps(self) -> bool:
        return any(step != 1 for step in self.steps)

    def _inner(self) -> Slice:
        return self._replace(starts=(0,) * len(self.extent))


class Pad(NamedTuple):
    """Zeros after the end of each axis, so that a last partial row can be reshaped."""

    amounts: Shape

    def read(self, x):
        return lax.pad(x, jnp.zeros((), x.dtype), [(0, n, 0) for n in self.amounts])

    def write(self, x, part):
        return lax.slice(part, (0,) * x.ndim, x.shape)


class Broadcast(NamedTuple):
    """Reshape to ``kept`` (ones where the view is expanded), then broadcast to ``shape``."""

    kept: Shape
    shape: Shape

    def read(self, x):
        return jnp.broadcast_to(x.reshape(self.kept), self.shape)

    def write(self, x, part):
        # every copy of an expanded element is one location (PyTorch refuses most such writes)
        first = tuple(slice(0, 1) if k == 1 else slice(None) for k in self.kept)
        return part[first].reshape(x.shape)


class Empty(NamedTuple):
    """A view of no elements."""

    shape: Shape

    def read(self, x):
        return jnp.zeros(self.shape, x.dtype)

    def write(self, x, part):
        return x


class Gather(NamedTuple):
    """Elements by position in a flat array: for views whose windows overlap."""

    size: Shape
    stride: Shape

    def positions(self) -> jax.Array:
        """Return the place in the flat array of each element: int64, shape ``size``."""
        index = jnp.zeros(self.size, jnp.int64)
        for axis, stride in enumerate(self.stride):
            index += lax.broadcasted_iota(jnp.int64, self.size, axis) * stride
        return index

    def read(self, x):
        return x[self.positions()]

    def write(self, x, part):
        return x.at[self.positions()].set(part)


class Bitcast(NamedTuple):
    """The same bytes as another dtype, flat; bytes that fill no whole element are left out."""

    dtype: np.dtype

    def read(self, x):
        flat = x.reshape(-1)
        nbytes = flat.size * flat.dtype.itemsize
        usable = nbytes // self.dtype.itemsize * self.dtype.itemsize // flat.dtype.itemsize
        return bitcast(flat[:usable], self.dtype)

    def write(self, x, part):
        whole = bitcast(part.reshape(-1), x.dtype)
        flat = x.reshape(-1)
        return jnp.concatenate([whole, flat[whole.size :]]).reshape(x.shape)


Step = Reshape | Permute | Slice | Pad | Broadcast | Empty | Gather | Bitcast
Lens = tuple[Step, ...]


def read(memory: jax.Array, lens: Lens) -> jax.Array:
    """Return the value that a view with this lens shows of ``memory``."""
    for step in lens:
        memory = step.read(memory)
    return memory


def write(memory: jax.Array, lens: Lens, value: jax.Array) -> jax.Array:
    """Return ``memory`` with ``value`` (of the view's shape and dtype) written through the lens."""
    if not lens:
        return value
    return lens[0].write(memory, write(lens[0].read(memory), lens[1:], value))


def view(shape: Shape, dtype, size: Shape, stride: Shape, offset: int, as_dtype) -> Lens:
    """Return the lens of a tensor over a memory of ``shape`` and ``dtype``; strides in elements."""
    if dtype == as_dtype:
        return plan(shape, size, stride, offset)
    count = math.prod(shape) * dtype.itemsize // as_dtype.itemsize
    return (Bitcast(as_dtype), *plan((count,), size, stride, offset))


def plan(base: Shape, size: Shape, stride: Shape, offset: int) -> Lens:
    """Return the steps from an array of shape ``base`` to a view, those first that copy least."""
    if math.prod(size) == 0:
        return (Empty(tuple(size)),)
    if base == tuple(size) and offset == 0 and is_row_major(size, stride):
        return ()
    dims = sorted(
        ((n, s, axis) for axis, (n, s) in enumerate(zip(size, stride, strict=True)) if n > 1 and s),
        key=lambda dim: (-dim[1], dim[2]),
    )
    total = math.prod(base)
    found = None
    whole = tuple(n for n in base if n != 1) or (1,)
    for candidate in (_split(whole, dims), whole, _radix(total, dims), (total,)):
        steps = _walk(candidate, dims, offset) if candidate else None
        if steps and not any(isinstance(step, Pad) for step in steps):
            found = steps
            break
        found = found or steps
    if found is None:
        GATHERS[tuple(size), tuple(stride)] += 1
        span = 1 + sum((n - 1) * s for n, s, _ in dims)
        part = Reshape((total,)), Slice((offset,), (span,), (1,))
        return (*_tidy(base, part), Gather(tuple(size), tuple(stride)))
    # axes in memory order are brought to the view's axes, expanded ones broadcast
    axes = [axis for _, _, axis in dims]
    order = tuple(axes.index(axis) for axis in sorted(axes))
    kept = tuple(n if i in axes else 1 for i, n in enumerate(size))
    lengths = Reshape(tuple(n for n, _, _ in dims))
    return _tidy(base, (*found, lengths, Permute(order), Broadcast(kept, tuple(size))))


def may_overlap(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether elements may share a place: some step does not exceed all shorter ones."""
    extent = 0
    if 0 in size:
        return False
    for n, step in sorted(zip(size, stride, strict=True), key=lambda dim: dim[1]):
        if n > 1 and step == 0:  # expanded, for which there is ``repeats``
            return False
        if n > 1 and step <= extent:
            return True
        extent += (n - 1) * step
    return False


def repeats(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether elements share a place because a tensor is expanded."""
    return 0 not in size and any(n > 1 and not s for n, s in zip(size, stride, strict=True))


def overlaps(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether some elements of a view share a place in memory.

    >>> overlaps((3, 2), (1, 1)), overlaps((2, 3), (3, 2))
    (True, False)
    """
    if not may_overlap(size, stride):
        return False
    places = np.zeros(tuple(size), np.int64)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        places += np.arange(n).reshape([n if d == axis else 1 for d in range(len(size))]) * step
    return len(np.unique(places)) < places.size


def is_row_major(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether the strides are contiguous (axes of length one never matter)."""
    if 0 in size:
        return True
    expected = 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        if n != 1 and s != expected:
            return False
        expected *= n
    return True


def row_major(size: Sequence[int]) -> Shape:
    """Return PyTorch's contiguous strides for ``size``: axes of length zero count as one."""
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def memory_order(size: Sequence[int], stride: Sequence[int]) -> Shape | None:
    """Return axes, the outermost first, of a dense view without overlap; None for others."""
    if 0 in size:
        return tuple(range(len(size)))
    order = sorted(range(len(size)), key=lambda i: (-stride[i], size[i] == 1, i))
    permuted = [size[i] for i in order], [stride[i] for i in order]
    return tuple(order) if is_row_major(*permuted) else None


def bitcast(flat: jax.Array, dtype: np.dtype) -> jax.Array:
    """Reinterpret the bytes of a flat array; its size must be a whole number of ``dtype``."""
    if flat.dtype == dtype:
        return flat
    if jnp.issubdtype(flat.dtype, jnp.complexfloating):
        return bitcast(jnp.stack([flat.real, flat.imag], -1).reshape(-1), dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        pairs = bitcast(flat, np.finfo(dtype).dtype).reshape(-1, 2)
        return lax.complex(pairs[:, 0], pairs[:, 1])
    return flat.view(np.uint8) != 0 if dtype == jnp.bool_ else flat.view(dtype)


def _split(base: Shape, dims) -> Shape | None:
    """Return the shape with axes split as dims of the view are: compilers read outer parts."""
    shape: list[int] = []
    for n, stride in zip(base, row_major(base), strict=True):
        inside = [s // stride for _, s, _ in dims if stride <= s < n * stride]
        for step in inside[:-1]:
            if n % step:
                return None
            shape.append(n // step)
            n = step
        shape.append(n)
    return tuple(shape)


def _radix(total: int, dims) -> Shape | None:
    """Return the shape of memory with the view's own strides, where they divide one another."""
    previous, shape = total, []
    for s in sorted({s for _, s, _ in dims} | {1}, reverse=True):
        if previous % s:
            return None
        shape.append(previous // s)
        previous = s
    return tuple(shape)


def _walk(base: Shape, dims, offset: int) -> Lens | None:
    """Reshape to ``base`` and cut the view out axis by axis; None where this is impossible."""
    strides = row_major(base)
    groups: list[list[tuple[int, int]]] = [[] for _ in base]
    for n, s, _ in dims:
        axis = next(i for i, b in enumerate(strides) if b <= s and (base[i] > 1 or b == 1))
        if s % strides[axis]:
            return None
        groups[axis].append((n, s // strides[axis]))
    starts = [
        offset // s % n if i else offset // s
        for i, (s, n) in enumerate(zip(strides, base, strict=True))
    ]
    for n, start, group in zip(base, starts, groups, strict=True):
        # each dim must step over all inner ones, so that no two elements coincide
        nested = all(step > _extent(group[i + 1 :]) for i, (_, step) in enumerate(group))
        if not nested or start + _extent(group) >= n:
            return None
    return (Reshape(base), *_cut(list(base), groups, starts))


def _extent(group) -> int:
    return sum((n - 1) * step for n, step in group)


def _cut(shape: list[int], groups, starts) -> list[Step]:
    """Slice each axis to its view dims; an axis with several is split and cut again."""
    pads, extent, steps, rest = [], [], [], []
    for length, group, start in zip(shape, groups, starts, strict=True):
        n, step = group[0] if group else (1, 1)
        split = len(group) > 1
        extent.append(n * step if split else (n - 1) * step + 1)
        pads.append(max(0, start + extent[-1] - length))
        steps.append(1 if split else step)
        rest.append((n, step, group[1:]) if split else (n, 1, []))
    done: list[Step] = [Pad(tuple(pads))] if any(pads) else []
    done.append(Slice(tuple(starts), tuple(extent), tuple(steps)))
    if not any(group for _, _, group in rest):
        return done
    shape = [x for n, step, group in rest for x in ((n, step) if group else (n,))]
    inner = [g for n, _, group in rest for g in (([(n, 1)], group) if group else ([(n, 1)],))]
    return [*done, Reshape(tuple(shape)), *_cut(shape, inner, [0] * len(shape))]


def _tidy(base: Shape, steps: Lens) -> Lens:
    """Drop the steps that change nothing; the shape is followed to know which do."""
    shape = base
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, Broadcast) and step.kept == step.shape:
            step = Reshape(step.shape)
        after = _shape_after(step, shape)
        same = after == shape
        idle = same and (
            isinstance(step, Reshape | Slice | Broadcast)
            or (isinstance(step, Permute) and step.order == tuple(range(len(shape))))
        )
        if not idle:
            if kept and isinstance(step, Reshape) and isinstance(kept[-1], Reshape):
                kept.pop()
            kept.append(step)
        shape = after
    return tuple(kept)


def _shape_after(step: Step, shape: Shape) -> Shape:
    match step:
        case Reshape(target) | Broadcast(_, target):
            return target
        case Permute(order):
            return tuple(shape[i] for i in order)
        case Slice(_, extent, steps):
            return tuple(-(-n // step) for n, step in zip(extent, steps, strict=True))
        case Pad(amounts):
            return tuple(n + extra for n, extra in zip(shape, amounts, strict=True))
    raise AssertionError(step)
