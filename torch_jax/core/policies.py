"""Policies that settings ask of every way to run: checks of indices, and float64."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from torch_jax import config, target


def checks(kind: type[Exception]) -> bool:
    """Return whether a check is made whose error is of a kind (setting ``check_indices``)."""
    return config.get("check_indices") != "never" or kind is torch.linalg.LinAlgError


def waits_for_checks(kind: type[Exception] = IndexError) -> bool:
    """Return whether an operator waits for its check, as factorizations do where one computes."""
    if target.chosen() is not None:
        return False
    mode = config.get("check_indices")
    at_once = mode == "always" or (mode == "auto" and target.on_cpu())
    return at_once or kind is torch.linalg.LinAlgError  # which programs catch


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
