"""``torch_jax.jit``: a call of a Python function is one program; later calls may skip the Python.

May import: environment and below. Loaded by ``import torch``: no.
"""
