"""PyTorch's operator database as cases: entries, dtypes, and sample inputs on either device.

The database is what PyTorch tests its own devices with
(``torch.testing._internal.common_methods_invocations.op_db``).
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.conformance.report import WEEK

DTYPES = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
)

# At most so many samples of an entry and dtype, spread evenly over all of them (0: all).
LIMIT = int(os.environ.get("CONFORMANCE_SAMPLES", "0"))


# What an entry is asked for in any week, and how many other dtypes in turn.
ALWAYS = (torch.float32, torch.int64)
CHANGING = 1

# Entries whose tensor arguments but the first live on the CPU, whatever device the first is on.
_ON_HOST = ("tensor_split",)


class OnHost(NamedTuple):
    """A tensor argument that no device takes."""

    tensor: torch.Tensor


def entries() -> list[Any]:
    """All of ``op_db``."""
    return op_db


def dtypes(entry: Any) -> list[torch.dtype]:
    """Those of :data:`DTYPES` that the CPU supports."""
    return [dtype for dtype in DTYPES if dtype in entry.supported_dtypes("cpu")]


def due(entry: Any, week: str = WEEK) -> list[torch.dtype]:
    """The dtypes that the entry is asked for in a week: all of them where ``week`` is empty."""
    supported = dtypes(entry)
    if not week:
        return supported
    others = [dtype for dtype in supported if dtype not in ALWAYS]
    first = (zlib.crc32(entry.full_name.encode()) + int(week)) * CHANGING
    chosen = {others[(first + step) % len(others)] for step in range(CHANGING) if others}
    return [dtype for dtype in supported if dtype in ALWAYS or dtype in chosen]


def in_turn(turn: int, week: str = WEEK) -> list[Any]:
    """One half of the entries in a week, the other in the next; all where ``week`` is empty.

    ``turn`` is 0 or 1: what has the other turn is asked of the other half.
    """
    if not week:
        return entries()
    return [e for e in entries() if (zlib.crc32(e.full_name.encode()) + int(week) + turn) % 2]


def dtype_name(dtype: torch.dtype) -> str:
    """``"float32"``."""
    return str(dtype).removeprefix("torch.")


def differentiable(entry: Any, dtype: torch.dtype) -> bool:
    """Whether the CPU takes gradients of this entry in this dtype."""
    return entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")


def samples(entry: Any, dtype: torch.dtype, everything: bool = False) -> list[Any]:
    """The entry's sample inputs on the CPU, the same at every call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(drawn(entry, dtype))
    return found if everything else spread(found, LIMIT)


def drawn(entry: Any, dtype: torch.dtype) -> Iterator[Any]:
    """All sample inputs one by one: there may be hundreds, of which not all are needed."""
    torch.manual_seed(0)
    for sample in entry.sample_inputs("cpu", dtype, requires_grad=differentiable(entry, dtype)):
        if entry.full_name in _ON_HOST:
            sample.args = tuple(
                OnHost(a) if isinstance(a, torch.Tensor) else a for a in sample.args
            )
        yield sample


def spread(items: list[Any], limit: int) -> list[Any]:
    """``limit`` of the items from first to last, all of them where there are fewer or it is 0."""
    if not limit or len(items) <= limit:
        return items
    return [items[i * (len(items) - 1) // max(limit - 1, 1)] for i in range(limit)]


def on(device: str, value: Any) -> Any:
    """A copy of a sample's arguments on ``device``: geometry, aliases and leaves as they are."""
    return _copy(value, device, {})


def _copy(value: Any, device: str, storages: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.is_meta:  # of a sample that mixes devices
            return value
        return _copy_tensor(value, device, storages)
    if isinstance(value, OnHost):
        return value.tensor.clone()
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_copy(v, device, storages) for v in value)
    if isinstance(value, dict):
        return {k: _copy(v, device, storages) for k, v in value.items()}
    if value == "cpu" if isinstance(value, str) else value == torch.device("cpu"):
        return device
    return value


def _copy_tensor(x: torch.Tensor, device: str, storages: dict[int, torch.Tensor]) -> torch.Tensor:
    if x.layout != torch.strided:
        return x.detach().clone().to(device).requires_grad_(x.requires_grad)
    flat = storages.get(x.untyped_storage().data_ptr())
    if flat is None or not flat.numel() or flat.dtype != x.dtype:
        count = x.untyped_storage().nbytes() // x.dtype.itemsize
        plain = x.detach().resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else x.detach()
        if plain.data_ptr() != x.data_ptr():
            return _conjugated(plain.to(device), x).requires_grad_(x.requires_grad)
        flat = plain.as_strided((count,), (1,), 0).clone().to(device)
        storages[x.untyped_storage().data_ptr()] = flat
    new = flat.as_strided(x.shape, x.stride(), x.storage_offset())
    return new.detach().requires_grad_(x.requires_grad)


def _conjugated(plain: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A lazily conjugated or negated view of the value that ``like`` has."""
    if like.is_conj():
        return plain.conj_physical().conj()
    return torch._neg_view(-plain)


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors inside ``value``, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors(v)]
    return []


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """What a call returns and None, or None and what it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*args, **kwargs), None
        except Exception as error:
            return None, error
