"""JAX and PyTorch in one program: values, functions, modules and optimizers of one in the other.

May import: every folder below. Loaded by ``import torch``: no.
"""
