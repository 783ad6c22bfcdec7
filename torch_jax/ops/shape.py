"""Joining, repeating, reordering and embedding, and the gradients of views."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops.conv_forms import padded
from torch_jax.ops.derivatives import transposed
from torch_jax.ops.on_host import on_host
from torch_jax.ops.promotion import promote
from torch_jax.ops.registry import op


@op("cat")
def cat(tensors, dim=0):
    """Join tensors; those of shape ``(0,)`` join with any shape, and count for the dtype alone."""
    tensors = promote(*tensors)
    kept = [t for t in tensors if t.shape != (0,)]
    return jnp.concatenate(kept, dim) if kept else tensors[0]


op("stack")(lambda tensors, dim=0: jnp.stack(promote(*tensors), dim))
op("repeat")(lambda self, repeats: jnp.tile(self, repeats))
op("flip")(lambda self, dims: jnp.flip(self, dims) if self.ndim else self)


@op("roll", integers=("shifts",))
def roll(self, shifts, dims=()):
    """Roll along dims, or the flattened tensor; ``jnp.roll`` would narrow a shift to int32."""
    if self.size == 0:
        return self
    if not dims:
        return jnp.roll(self.reshape(-1), shifts[0] % self.size).reshape(self.shape)
    return jnp.roll(self, [n % self.shape[d] for n, d in zip(shifts, dims, strict=True)], dims)


@op(
    "repeat_interleave.Tensor",
    concrete=lambda output_size=None: output_size is None,
    instead="give output_size=, the sum of the repeats",
    meta=False,
)
def repeat_interleave(repeats, *, output_size=None):
    """Return the index of each element, ``repeats`` times; the meta function wants a size."""
    if output_size is None:
        counts = on_host(repeats)
        if counts.size and counts.min() < 0:
            raise RuntimeError("repeats can not be negative")
        return np.repeat(np.arange(counts.size, dtype=counts.dtype), counts)
    index = lax.iota(repeats.dtype, repeats.size)
    return jnp.repeat(index, repeats, total_repeat_length=output_size)


@op("tril", integers=("diagonal",))
def tril(self, diagonal=0):
    """Keep elements on and below a diagonal, of a batch of matrices."""
    return jnp.where(_diagonals(self) <= diagonal, self, jnp.zeros((), self.dtype))


@op("triu", integers=("diagonal",))
def triu(self, diagonal=0):
    """Keep elements on and above a diagonal, of a batch of matrices."""
    return jnp.where(_diagonals(self) >= diagonal, self, jnp.zeros((), self.dtype))


def _diagonals(x):
    """Return the diagonal of each element of a matrix, for the last two dims of ``x``."""
    row, column = (lax.broadcasted_iota(jnp.int64, x.shape[-2:], axis) for axis in (0, 1))
    return column - row


@op("channel_shuffle", channels_last=("self",))
def channel_shuffle(self, groups):
    """Transpose the groups and the channels within each."""
    n, c, *rest = self.shape
    return self.reshape(n, groups, c // groups, *rest).swapaxes(1, 2).reshape(self.shape)


def _spread(src, shape, dim: int, start: int, step: int):
    """Return ``src`` at a slice of a tensor of ``shape``, zeros elsewhere: one pad."""
    count = src.shape[dim]
    config = [(0, 0, 0)] * len(shape)
    if count == 0:
        return jnp.zeros(shape, src.dtype)
    if not isinstance(start, int):  # a traced integer: a window of zeros takes the whole
        reach = 1 + (count - 1) * step
        part = _spread(src, (*shape[:dim], reach, *shape[dim + 1 :]), dim, 0, step)
        return lax.dynamic_update_slice_in_dim(jnp.zeros(shape, src.dtype), part, start, dim)
    config[dim] = (start, shape[dim] - start - (count - 1) * step - 1, step - 1)
    return lax.pad(src, jnp.zeros((), src.dtype), config)


@op("slice_backward", integers=("start", "end"))
def slice_backward(grad_output, input_sizes, dim, start, end, step):
    """Return the gradient in a slice of zeros."""
    dim %= len(input_sizes)
    size = input_sizes[dim]
    if isinstance(start, int):
        start = slice(start, None).indices(size)[0]  # clipped as Python clips
    else:
        start = jnp.clip(jnp.where(start < 0, start + size, start), 0, size)
    return _spread(grad_output, input_sizes, dim, start, step)


@op("select_backward", integers=("index",))
def select_backward(grad_output, input_sizes, dim, index):
    """Return the gradient in one position of zeros; nowhere, where there is no such position."""
    dim %= len(input_sizes)
    grad, size = jnp.expand_dims(grad_output, dim), input_sizes[dim]
    if isinstance(index, int):
        return _spread(grad, input_sizes, dim, index % size, 1)
    place = lax.broadcasted_iota(jnp.int64, input_sizes, dim)
    return jnp.where((place == index) | (place - size == index), grad, jnp.zeros((), grad.dtype))


@op("unfold_backward")
def unfold_backward(grad_in, input_sizes, dim, size, step):
    """Transpose windows, joined of ``size / step`` shifted tensors, so that no scatter is needed.

    The gradient's dims of length one spread, as those of an envelope's windows in ``istft``.
    """
    if not input_sizes:
        return grad_in.reshape(())
    if size == 0:
        return jnp.zeros(input_sizes, grad_in.dtype)
    dim %= len(input_sizes)
    count, pieces = grad_in.shape[dim], -(-size // step)

    def unfold(x):
        x = padded(x, dim, [(0, (count + pieces - 1) * step - x.shape[dim])])  # or cut
        shape = (*x.shape[:dim], count, step, *x.shape[dim + 1 :])
        starts = range(0, pieces * step, step)
        parts = [lax.slice_in_dim(x, at, at + count * step, axis=dim) for at in starts]
        windows = jnp.concatenate([part.reshape(shape) for part in parts], dim + 1)
        return jnp.moveaxis(lax.slice_in_dim(windows, 0, size, axis=dim + 1), dim + 1, -1)

    windows = (*input_sizes[:dim], count, *input_sizes[dim + 1 :], size)
    return transposed(unfold, jnp.broadcast_to(grad_in, windows), input_sizes)
