"""``torch.compile(backend="jax")`` and fx graphs, run by JAX.

May import: environment and below. Loaded by ``import torch``: no.
"""
