"""PyTorch/XLA's names, carried onto those of this package: programs change their imports only.

May import: everything but startup. Loaded by ``import torch``: no.
"""
