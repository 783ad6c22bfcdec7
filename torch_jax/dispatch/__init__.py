"""From PyTorch's dispatcher to a kernel: registration, and the ladder for other operators.

May import: eager and below. Loaded by ``import torch``: no.
"""
