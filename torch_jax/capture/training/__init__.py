"""Training steps in ``torch_jax.jit``: optimizers, scaling, checkpointing.

May import: the rest of capture. Loaded by ``import torch``: no.
"""
