"""The module ``torch.jax``: what ``torch.cuda`` is for CUDA.

May import: memory and below. Loaded by ``import torch``: yes.
"""
