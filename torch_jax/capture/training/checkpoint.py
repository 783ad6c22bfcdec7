"""``torch.utils.checkpoint`` in a compiled function: computed twice, not merged by XLA.

PyTorch runs a checkpointed function a second time in the backward pass. In one program both runs
are the same equations, and XLA would merge them, so that nothing is saved. A barrier in front of
the second run keeps them apart, as in ``jax.checkpoint``
(https://docs.jax.dev/en/latest/_autosummary/jax.checkpoint.html, ``prevent_cse``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jax import lax

from torch_jax.core.active import ACTIVE
from torch_jax.core.x64 import x64
from torch_jax.memory import storage, transfer
from torch_jax.memory.storage import is_jax


class _Barrier(torch.autograd.Function):
    """Tensors behind a barrier; gradients pass."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> Any:
        """The same values, behind a barrier that XLA does not look through."""
        for tensor in tensors:
            ACTIVE.tracer.see(tensor)
        with x64():
            arrays = lax.optimization_barrier([transfer.value_of(t) for t in tensors])
        return tuple(storage.wrap(a, t.dtype) for a, t in zip(arrays, tensors, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients, unchanged."""
        return gradients


def again(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose second run in a trace is kept apart from the first."""
    runs = 0

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal runs
        runs += 1
        places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and is_jax(a)]
        if runs > 1 and places and ACTIVE.tracer is not None:
            behind = _Barrier.apply(*(args[i] for i in places))
            replaced = dict(zip(places, behind, strict=True))
            args = tuple(replaced.get(i, a) for i, a in enumerate(args))
        return function(*args, **kwargs)

    return run
