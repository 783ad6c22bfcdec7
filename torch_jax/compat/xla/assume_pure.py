"""``torch_xla.experimental.assume_pure``: functions whose Python runs once, if it may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from torch_jax.capture import jit
from torch_jax.compat.xla.spmd_fsdp import Wrapper


def assume_pure(fn: Callable[..., Any], *, add_rng_seed_argument: bool = False) -> Any:
    """Return a function as one program: the values that it reads are checked at each call."""
    return jit.jit(fn)


class PureModule(Wrapper):
    """A module whose forward pass is one program."""

    def __init__(self, module: nn.Module):
        super().__init__(module)
        self._compiled = jit.jit(module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result."""
        return self._compiled(*args, **kwargs)
