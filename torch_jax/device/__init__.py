"""The module ``torch.jax``, the counterpart of ``torch.cuda``.

May import: memory and below. Loaded by ``import torch``: yes.
"""
