"""What regions of code ask for: defaults, ``cuda`` as jax, overrides of operators.

May import: dispatch and below. Loaded by ``import torch``: no.
"""
