"""Checks of what distributions are given, for which Python does not wait."""

from __future__ import annotations

import sys
from typing import Any

from torch_jax import config, target
from torch_jax.core.active import ACTIVE
from torch_jax.core.patching import AT_FIRST_USE, around
from torch_jax.memory import flags
from torch_jax.memory.storage import held_by, is_jax_tensor


@around("torch._is_all_true", AT_FIRST_USE)
def _patch_validation(original: Any, valid: Any) -> Any:
    """Each check of a distribution's arguments ends a recording, and waits for an accelerator.

    Here the error is raised when the recording has run, or where Python waits next.
    """
    recorder, caller = ACTIVE.recorder, sys._getframe(2)
    takes = recorder is not None and recorder.listener.takes_checks
    is_late = config.get("check_indices") == "auto" and not (recorder is None and target.on_cpu())
    is_asked = caller.f_globals.get("__name__") == "torch.distributions.distribution"
    if not (takes or is_late) or not (is_asked and is_jax_tensor(valid)):
        return original(valid)
    check = flags.come_later if recorder is None else recorder.check_later
    check(held_by(valid.all()), _message(caller.f_locals), ValueError)
    return True


def _message(given: dict[str, Any]) -> str:
    """Return PyTorch's sentence, without the values."""
    shape, name = tuple(given["value"].shape), type(given["self"]).__name__
    if "constraint" in given:
        return (
            f"Expected parameter {given['param']} (Tensor of shape {shape}) of distribution {name} "
            f"to satisfy the constraint {given['constraint']!r}"
        )
    return (
        f"Expected value argument (Tensor of shape {shape}) to be within the support "
        f"({given['support']!r}) of the distribution {name}"
    )
