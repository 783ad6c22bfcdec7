"""``torch_jax.optim``: optimizers of JAX for PyTorch's parameters."""

from __future__ import annotations

from torch_jax.interop.optax_optimizer import Optax

__all__ = ["Optax"]
