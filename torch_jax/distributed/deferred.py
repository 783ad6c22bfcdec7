"""Modules that were made on ``meta``: their memory is made sharded, and filled by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import NamedSharding

from torch_jax.core import absent
from torch_jax.core.x64 import x64
from torch_jax.memory import dtypes, geometry, sharding, storage

Part = tuple[str, torch.nn.Module]


def parts_on_meta(
    module: torch.nn.Module, init: Callable[[torch.nn.Module], Any] | None
) -> list[Part]:
    """Return the modules that hold tensors on ``meta``, each after those below it."""
    parts, met = [], set[int]()
    for part in _after_children("", module):
        on_meta = {id(tensor) for tensor in _own(part[1]) if tensor.is_meta}
        if on_meta - met:  # a module of tied tensors only must not fill them again
            parts.append(part)
        met |= on_meta
    faults = []
    for name, owner in parts if init is None else ():
        if not all(tensor.is_meta for tensor in _own(owner)):
            faults.append(f"{name} ({type(owner).__name__}) is on meta in part only")
        elif reset_of(owner) is None:
            faults.append(f"{name} ({type(owner).__name__}) has no reset_parameters()")
    if faults:
        lines = "".join(f"\n  {fault}" for fault in faults)
        raise RuntimeError(
            f"parameters and buffers on meta have no values yet, and these cannot be filled:{lines}"
            "\ngive torch_jax.shard(..., init=function), which is called with the whole module and "
            "fills it, such as lambda module: module.load_state_dict(state)"
        )
    return parts


def zeros(tensor: torch.Tensor, wanted: NamedSharding) -> torch.Tensor:
    """Return zeros of the geometry of a tensor on ``meta``, made in parts on a mesh's devices."""
    stride = storage.dense_strides(tensor.shape, tensor.stride())
    order = geometry.memory_order(tensor.shape, stride) or range(tensor.dim())
    shape = tuple(tensor.shape[at] for at in order)
    parts = sharding.permuted(wanted, tuple(order))
    made = jax.jit(jnp.zeros, static_argnums=(0, 1), out_shardings=parts)
    dtype = dtypes.to_jax(tensor.dtype)
    with x64():
        array = absent.Absent(shape, dtype, parts) if absent.is_chosen() else made(shape, dtype)
    return storage.restride(storage.wrap(array, tensor.dtype), tensor.shape, stride, 0)


def _after_children(name: str, module: torch.nn.Module) -> Iterator[Part]:
    for below, child in module.named_children():
        yield from _after_children(f"{name}.{below}" if name else below, child)
    yield name or type(module).__name__, module


def _own(module: torch.nn.Module) -> list[torch.Tensor]:
    return list(chain(module.parameters(recurse=False), module.buffers(recurse=False)))


def reset_of(module: torch.nn.Module) -> Any:
    """Return the method by which a module fills its tensors, None where it has none."""
    found = (getattr(module, name, None) for name in ("reset_parameters", "_reset_parameters"))
    return next(filter(None, found), None)
