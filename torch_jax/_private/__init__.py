"""Private names of PyTorch and JAX, looked up tolerantly.

May import: nothing of torch_jax. Loaded by ``import torch``: yes.
"""
