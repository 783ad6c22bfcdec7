"""``torch_jax.optim``: optimizers of JAX for PyTorch's parameters."""

from torch_jax.interop.optax_optimizer import Optax

__all__ = ["Optax"]
