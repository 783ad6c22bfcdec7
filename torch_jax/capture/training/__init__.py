"""What training steps need of ``torch_jax.jit``: optimizers, scaling, checkpointing.

May import: what stands below it in capture. Loaded by ``import torch``: no.
"""
