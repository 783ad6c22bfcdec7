"""``torch_xla.core.xla_builder``: JAX functions in programs of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_jax.interop import from_jax


def call_jax(
    jax_func: Callable[..., Any], args: Any, kwargs: Any = None, name: str | None = None
) -> Any:
    """Return the result of a JAX function for tensors; gradients flow through it."""
    return from_jax.call_jax(jax_func, *args, **(kwargs or {}))
