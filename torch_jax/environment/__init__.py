"""Settings of regions of code: default devices, ``cuda`` as jax, overrides of operators.

May import: dispatch and below. Loaded by ``import torch``: no.
"""
