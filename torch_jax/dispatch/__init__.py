"""From PyTorch's dispatcher to a kernel: registration, and the ladder for what has no kernel.

May import: eager and below. Loaded by ``import torch``: no.
"""
