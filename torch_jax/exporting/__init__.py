"""``torch_jax.export``: models as StableHLO files.

May import: capture, graphs and below. Loaded by ``import torch``: no.
"""
