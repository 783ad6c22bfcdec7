"""What the settings ask of every way to run: checks of indices, and what float64 does."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from typing import Any

import jax
import torch

from torch_jax import config


@functools.cache
def on_cpu() -> bool:
    """Whether JAX computes on the CPU."""
    return jax.default_backend() == "cpu"


def checks_indices() -> bool:
    """Whether index tensors are checked against bounds (setting ``check_indices``)."""
    mode = config.get("check_indices")
    return mode == "always" or (mode == "auto" and on_cpu())


_DOUBLES = frozenset((torch.float64, torch.complex128))
_warned_of_float64: set[str] = set()


def note_doubles(kinds: Iterable[torch.dtype], where: Any) -> None:
    """Warn or raise, by the setting ``float64``, where doubles come to an accelerator."""
    policy = config.get("float64")
    if policy == "exact" or on_cpu() or _DOUBLES.isdisjoint(kinds):
        return
    message = (
        f"{where}: float64 is slow or emulated on {jax.default_backend()} and the setting float64 "
        f"is {policy!r}. Use float32, or set TORCH_JAX_FLOAT64=exact."
    )
    if policy == "error":
        raise TypeError(message)
    if str(where) not in _warned_of_float64:
        _warned_of_float64.add(str(where))
        warnings.warn(message, stacklevel=3)
