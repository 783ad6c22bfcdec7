"""Arguments that are a part of a tensor, ``data[i : i + 32]`` or ``steps[i]``, given by value.

A program takes whole memories, and the place of a view in its memory is part of the program. For
an argument that is a contiguous part of a larger memory that would be a program for each place; so
the program gets a copy of the part. A function that writes the argument, or returns it or a view of
it, needs the part itself: it takes its arguments without copies.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import Any

import jax
import torch

from torch_jax.core.x64 import x64
from torch_jax.memory import dtypes
from torch_jax.memory.storage import is_jax, memory_of, wrap


def by_value(leaves: list[Any]) -> tuple[list[Any], dict[int, torch.Tensor]]:
    """Return the leaves with copies in place of parts, and the parts by their place."""
    found = [
        i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and _is_part(leaf)
    ]
    if not found:
        return leaves, {}
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    uses = Counter(id(tensor.untyped_storage()) for tensor in tensors)
    parts = {i: leaves[i] for i in found if uses[id(leaves[i].untyped_storage())] == 1}
    return [_copy(leaf) if i in parts else leaf for i, leaf in enumerate(leaves)], parts


def _is_part(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a contiguous part of its memory, and only its value matters."""
    if not is_jax(tensor) or tensor.requires_grad or type(tensor) is not torch.Tensor:
        return False
    memory = memory_of(tensor)
    return (
        0 < tensor.numel() < memory.size
        and tensor.is_contiguous()
        and memory.dtype == dtypes.to_jax(tensor.dtype)
        and not (tensor.is_conj() or tensor.is_neg() or tensor.__dict__)
    )


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    with x64():
        array = _cut(memory_of(tensor), tensor.storage_offset(), tuple(tensor.shape))
    return wrap(array, tensor.dtype)


@functools.partial(jax.jit, static_argnums=2)
def _cut(memory: jax.Array, offset: int, size: tuple[int, ...]) -> jax.Array:
    flat = jax.lax.dynamic_slice(memory.reshape(-1), (offset,), (math.prod(size),))
    return flat.reshape(size)
