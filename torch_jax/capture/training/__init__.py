"""What training steps need of ``torch_jax.jit``: optimizers, scaling, checkpointing.

May import: capture.capture, capture.state, capture.host. Loaded by ``import torch``: no.
"""
