"""Programs of many processes: `torch.distributed` over JAX's collectives.

May import: every folder below. Loaded by ``import torch``: no.
"""
