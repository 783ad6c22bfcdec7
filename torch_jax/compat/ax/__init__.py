"""The modules of torchax, each a file; :mod:`torch_jax.compat.tables` says which is which.

May import: everything but startup. Loaded by ``import torch``: no.
"""
