"""Checks of what distributions are given, for which Python does not wait."""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from torch.distributions.constraints import Constraint

from torch_jax.core.patching import AT_FIRST_USE, around
from torch_jax.memory import flags
from torch_jax.memory.storage import held_by, is_jax_tensor


@around("torch._is_all_true", AT_FIRST_USE)
def _patch_validation(original: Any, valid: Any) -> Any:
    """Each check of a distribution's arguments ends a recording, and waits for an accelerator.

    Here the error is raised when the recording has run, or where Python waits next.
    """
    check, caller = flags.later(), sys._getframe(2)
    is_asked = caller.f_globals.get("__name__") == "torch.distributions.distribution"
    if check is None or not (is_asked and is_jax_tensor(valid)):
        return original(valid)
    check(held_by(valid.all()), _message(caller.f_locals), ValueError)
    return True


@around("torch.distributions.constraints._PositiveDefinite.check", AT_FIRST_USE)
def _patch_positive_definite(original: Any, self: Any, value: Any) -> Any:
    """Let no Python wait to learn whether matrices are symmetric, before they are factorized."""
    if not is_jax_tensor(value) or value.shape[-2] != value.shape[-1]:
        return original(self, value)
    is_symmetric = torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)
    return is_symmetric & torch.linalg.cholesky_ex(value).info.eq(0)


def _message(given: dict[str, Any]) -> str:
    """Return PyTorch's sentence, without the values."""
    shape, name = tuple(given["value"].shape), type(given["self"]).__name__
    if "constraint" in given:
        return (
            f"Expected parameter {given['param']} (Tensor of shape {shape}) of distribution {name} "
            f"to satisfy the constraint {_shown(given['constraint'])!r}"
        )
    return (
        f"Expected value argument (Tensor of shape {shape}) to be within the support "
        f"({_shown(given['support'])!r}) of the distribution {name}"
    )


def _shown(part: Any) -> Any:
    """Return a part of a constraint as it is written: a bound that is a tensor as its shape."""
    if is_jax_tensor(part):
        return f"Tensor of shape {tuple(part.shape)}"
    if isinstance(part, Constraint):
        part = copy.copy(part)
        vars(part).update({name: _shown(value) for name, value in vars(part).items()})
    return part
