"""Arguments of calls: copies of them on a device, and the result of a call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class OnHost(NamedTuple):
    """A tensor argument that no device takes."""

    tensor: torch.Tensor


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
