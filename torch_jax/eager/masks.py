"""Masks and indices of other dtypes than bool and int64: taken or refused as on the CPU.

Meta functions let most of them pass, and JAX would index with a mask. The CPU's kernel is called
for its error (:mod:`torch_jax.eager.twins`) when an entry is compiled.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_jax.eager import twins

_USUAL = {
    "mask": (torch.bool,),
    "condition": (torch.bool,),
    "index": (torch.int64,),
    "indices": (torch.int64, torch.bool),
}


def refuse(op: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raise where the CPU takes no masks or indices of these dtypes, but takes the usual ones."""
    given = dict(zip(twins.names_of(op), args, strict=False)) | kwargs
    unusual = {k for k, dtypes in _USUAL.items() if _is_unusual(given.get(k), dtypes)}
    if not unusual or not twins.can_be_small(op):
        return
    named = twins.twins(op, given, twins.small)
    error = twins.refusal(op, named)
    if error is None:
        return
    usual = named | {k: _cast(named[k], _USUAL[k]) for k in unusual}
    if twins.refusal(op, usual) is None:
        raise error.with_traceback(None)


def _is_unusual(value: Any, usual: tuple[torch.dtype, ...]) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_unusual(item, usual) for item in value)
    return isinstance(value, torch.Tensor) and value.dtype not in usual


def _cast(value: Any, usual: tuple[torch.dtype, ...]) -> Any:
    """Return twins of a usual dtype that select alike: shapes that disagree still do so."""
    if isinstance(value, list | tuple):
        return [_cast(item, usual) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    is_mask = value.dtype in (torch.bool, torch.uint8) and torch.bool in usual
    return value.to(torch.bool if is_mask else usual[0])
