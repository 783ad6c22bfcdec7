"""The devices of tensors and parameters: :func:`is_jax_module` and :func:`where_is`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from torch_jax._private import pytorch
from torch_jax.device.memory_report import readable
from torch_jax.distributed import rules
from torch_jax.loops.master_weights import kept_for
from torch_jax.memory import geometry
from torch_jax.memory.sharding import sharding_of
from torch_jax.memory.storage import memory_if_any, tensors_in


class Row(NamedTuple):
    """One module with all below it: ``devices`` and ``dtypes`` are sorted, ``bytes`` the memory."""

    name: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    tensors: int
    bytes: int


class Sharded(NamedTuple):
    """A tensor beside others that lie on a mesh."""

    name: str
    shape: tuple[int, ...]
    spec: tuple[Any, ...] | None  # None where it lies on one device
    bytes: int  # of its part on each device


class Whereabouts(NamedTuple):
    """The answer of :func:`where_is`; ``print`` shows it as a table. The first row is the whole."""

    rows: tuple[Row, ...]
    shardings: tuple[Sharded, ...] = ()  # of each tensor, if one lies on a mesh of devices

    def __str__(self) -> str:
        cells = [("module", "devices", "dtypes", "tensors", "memory")]
        for row in self.rows:
            names = ", ".join(row.devices), ", ".join(row.dtypes)
            cells.append((row.name, *names, str(row.tensors), readable(row.bytes)))
        if not self.shardings:
            return _table(cells)
        parts = [("tensor", "shape", "sharding", "on each device")]
        for one in self.shardings:
            spec = "one device" if one.spec is None else str(one.spec)
            parts.append((one.name, str(list(one.shape)), spec, readable(one.bytes)))
        return f"{_table(cells)}\n\n{_table(parts)}"


def _table(cells: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def is_jax_module(module: torch.nn.Module) -> bool:
    """Return whether all parameters and buffers of a module are on the device ``jax``.

    A module without any is on no device: ``False``.

    Raises:
      TypeError: ``module`` is no ``nn.Module``.

    >>> is_jax_module(torch.nn.Linear(2, 3)), is_jax_module(torch.nn.Linear(2, 3, device="jax"))
    (False, True)
    """
    devices = {tensor.device.type for _, tensor in rules.tensors_of(_checked(module))}
    return devices == {pytorch.DEVICE_TYPE}


def where_is(
    module: torch.nn.Module | torch.Tensor,
    optimizer: torch.optim.Optimizer | None = None,
    depth: int | None = None,
) -> Whereabouts:
    """Return devices, dtypes and memory of a module and of each module below it with tensors.

    If any tensor lies on a mesh of devices, the answer also has the split of each tensor; with an
    ``optimizer``, of its state, too.

    A tensor that is tied, or a view of another's memory, counts once in each row. Parameters that
    are not initialized yet (lazy modules) count with no memory, those on ``meta`` with the memory
    that they would take.

    Args:
      module: any ``nn.Module``, on any device, or one tensor.
      optimizer: gives a last row with the tensors of its state.
      depth: how many levels of modules below ``module`` to show (None: all).

    Raises:
      TypeError: ``module`` is neither an ``nn.Module`` nor a tensor.

    >>> print(where_is(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()).to("jax")))
    module      devices  dtypes   tensors  memory
    Sequential  jax:0    float32  2        36 B
    0           jax:0    float32  2        36 B
    """
    if isinstance(module, torch.Tensor):
        name = type(module).__name__
        return Whereabouts((_row(name, [module]),), _shardings([(name, module)]))
    rows = []
    for name, part in _checked(module).named_modules():
        below = name.count(".") + 1 if name else 0
        tensors = [tensor for _, tensor in rules.tensors_of(part, once=True)]
        if (tensors or not name) and (depth is None or below <= depth):
            rows.append(_row(name or type(module).__name__, tensors))
    named = list(rules.tensors_of(module, once=True))
    if optimizer is not None:
        masters = getattr(optimizer, "masters", {}).values()
        state = tensors_in([*masters, *optimizer.state.values()])
        rows.append(_row(f"state of {type(optimizer).__name__}", state))
        named += [
            (f"{key} of {name}", value)
            for name, parameter in named
            for key, value in kept_for(optimizer, parameter).items()
            if isinstance(value, torch.Tensor) and value.dim()  # no numbers
        ]
    return Whereabouts(tuple(rows), _shardings(named))


def _shardings(named: Sequence[tuple[str, torch.Tensor]]) -> tuple[Sharded, ...]:
    """Return the split of each tensor; nothing if none is split."""
    found = tuple(_sharded(name, tensor) for name, tensor in named if not is_lazy(tensor))
    return found if any(one.spec is not None for one in found) else ()


def _sharded(name: str, tensor: torch.Tensor) -> Sharded:
    memory = memory_if_any(tensor)
    sharding = None if memory is None else sharding_of(memory)
    if sharding is None:
        return Sharded(name, tuple(tensor.shape), None, _memory(tensor)[1])
    part = math.prod(sharding.shard_shape(memory.shape)) * memory.dtype.itemsize
    # the axes that split each dimension of the tensor, or of the memory of a partial view
    spec = tuple(getattr(sharding, "spec", (str(sharding),)))
    order = geometry.memory_order(tuple(tensor.shape), tensor.stride())
    if order is not None and memory.shape == tuple(tensor.shape[at] for at in order):
        spec += (None,) * (len(order) - len(spec))
        spec = tuple(spec[order.index(at)] for at in range(len(order)))
    while spec and spec[-1] is None:
        spec = spec[:-1]
    return Sharded(name, tuple(tensor.shape), spec, part)


def _checked(module: Any) -> torch.nn.Module:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"an nn.Module is asked for, not {type(module).__name__}")
    return module


def _row(name: str, tensors: Iterable[torch.Tensor]) -> Row:
    known = {id(tensor): tensor for tensor in tensors}.values()
    return Row(
        name,
        tuple(sorted({str(tensor.device) for tensor in known})),
        tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in known})),
        len(known),
        sum(dict(map(_memory, known)).values()),
    )


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the identity of a tensor's memory, and its size in bytes."""
    if is_lazy(tensor):
        return id(tensor), 0
    if not pytorch.has_storage(tensor):  # sparse ones have none of their own
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage._cdata, storage.nbytes()
