"""Policies that settings ask of every way to run: checks of indices, and float64."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from torch_jax import config, target


def checks_indices() -> bool:
    """Return whether index tensors are checked against bounds (setting ``check_indices``)."""
    return config.get("check_indices") != "never"


def waits_for_checks() -> bool:
    """Return whether an operator waits for its check; else the host's next wait raises."""
    mode = config.get("check_indices")
    return mode == "always" or (mode == "auto" and target.on_cpu())


_DOUBLES = frozenset((torch.float64, torch.complex128))
_warned_of_float64: set[str] = set()


def note_doubles(kinds: Iterable[torch.dtype], where: Any) -> None:
    """Warn or raise, by the setting ``float64``, where doubles come to an accelerator."""
    kinds = frozenset(kinds)
    if torch.complex128 in kinds and target.platform() == "tpu":  # its compiler ends the process
        raise TypeError(f"{where}: TPUs compute no complex128: use complex64")
    policy = config.get("float64")
    if policy == "exact" or target.on_cpu() or _DOUBLES.isdisjoint(kinds):
        return
    message = (
        f"{where}: float64 is slow or emulated on {target.platform()} and the setting float64 "
        f"is {policy!r}. Use float32, or set TORCH_JAX_FLOAT64=exact."
    )
    if policy == "error":
        raise TypeError(message)
    if str(where) not in _warned_of_float64:
        _warned_of_float64.add(str(where))
        warnings.warn(message, stacklevel=3)
