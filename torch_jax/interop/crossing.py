"""Arrays that cross the border between a program of JAX and tensors, and back.

Tensors have 64-bit types, and a program of JAX has them only with ``jax_enable_x64``. Without,

- arguments of int32, JAX's integers, arrive as int64, PyTorch's type of indices and labels;
- results are cast as ``jax.numpy.asarray`` casts them: int64 to int32, float64 to float32;
- residuals of a forward pass, for its backward pass, cross as pairs of 32 bits.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_jax._private import jax_core
from torch_jax.core import tracers
from torch_jax.core.x64 import x64
from torch_jax.dispatch.jax_programs import NARROW
from torch_jax.interop.jax_defaults import narrowed
from torch_jax.memory import border, storage


def is_narrow() -> bool:
    """Return whether the caller's program of JAX has no 64-bit types."""
    return jax.dtypes.canonicalize_dtype(np.int64) != np.int64


def tensor(array: Any) -> torch.Tensor:
    """Return an argument as a tensor of its memory, with a gradient where its dtype has any."""
    made = border.tensor_of(array)
    return made.requires_grad_() if made.is_floating_point() or made.is_complex() else made


def argument(leaf: torch.Tensor, narrow: bool) -> torch.Tensor:
    """Return a tensor for the function: a copy that it may write to, which costs nothing."""
    return leaf.long() if narrow and leaf.dtype == torch.int32 else leaf.clone()


def constant(leaf: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same memory to which no gradient of PyTorch's or JAX's flows."""
    array = storage.held_by(leaf)
    return storage.wrap(lax.stop_gradient(array) if tracers.is_traced(array) else array)


def out(result: torch.Tensor, narrow: bool) -> Any:
    """Return a result as an array."""
    with x64():
        return narrowed(border.users_array(result), not narrow)


def packed(array: Any, narrow: bool) -> Any:
    """Return a residual without 64-bit types."""
    array = jnp.asarray(array)
    if not narrow or array.dtype not in NARROW:
        return array
    if array.dtype == np.complex128:
        array = jnp.stack([array.real, array.imag], -1)
    return lax.bitcast_convert_type(array, np.uint32)


def unpacked(array: Any, aval: Any) -> Any:
    """Return a packed residual in its own type, ``aval``."""
    if array.dtype == aval.dtype:
        return array
    if aval.dtype == np.complex128:
        parts = lax.bitcast_convert_type(array, np.float64)
        return lax.complex(parts[..., 0], parts[..., 1])
    return lax.bitcast_convert_type(array, aval.dtype)


def of_axes(gradient: Any, array: Any) -> Any:
    """Return an array's gradient, over the mesh axes by which the array differs in ``shard_map``.

    It is summed over those axes along which the array is one and its uses are many.
    """
    has, wanted = (jax_core.varying_axes(jax.typeof(one)) for one in (gradient, array))
    if has - wanted:
        gradient = lax.psum(gradient, tuple(sorted(has - wanted)))
    if wanted - has:
        gradient = lax.pcast(gradient, tuple(sorted(wanted - has)), to="varying")
    return gradient
