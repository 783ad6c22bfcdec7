"""Arrays that cross the border between a program of JAX and tensors, and back.

Tensors have 64-bit types, and a program of JAX has them only with ``jax_enable_x64``. Without,

- arguments of int32, JAX's integers, arrive as int64, PyTorch's type of indices and labels;
- results are cast as ``jax.numpy.asarray`` casts them: int64 to int32, float64 to float32.

The package's own work has 64-bit types on. In code of optax or flax, which leaves dtypes to JAX's
defaults, numbers and random draws would then be of float64: it asks :func:`asks_for_wide`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from torch_jax._private import jax_core
from torch_jax.core import tracers
from torch_jax.core.x64 import x64
from torch_jax.dispatch.jax_programs import NARROW
from torch_jax.memory import border, storage


def is_narrow() -> bool:
    """Return whether the caller's program of JAX has no 64-bit types."""
    return jax.dtypes.canonicalize_dtype(np.int64) != np.int64


def asks_for_wide(dtypes: Iterable[Any]) -> bool:
    """Return whether 64-bit types are on: by the user's setting, or since a float is of 64 bits."""
    wide = (np.dtype(np.float64), np.dtype(np.complex128))
    return jax_core.x64_setting() or any(dtype in wide for dtype in dtypes)


def narrowed(value: Any, wide: bool) -> Any:
    """Return an argument as JAX takes it, without 64-bit types unless they are on."""
    if wide or not isinstance(value, jax.Array) or value.dtype not in NARROW:
        return value
    return value.astype(NARROW[value.dtype])


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
