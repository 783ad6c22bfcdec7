"""The modules of torchax, each a file; :mod:`torch_jax.compat.tables` maps names to files.

May import: everything but startup. Loaded by ``import torch``: no.
"""
