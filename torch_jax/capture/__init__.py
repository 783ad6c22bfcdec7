"""``torch_jax.jit``: one run of a Python function becomes one program.

May import: environment and below. Loaded by ``import torch``: no.
"""
