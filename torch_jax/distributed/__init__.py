"""Work on many devices: one process with a mesh of them, or many with `torch.distributed`.

May import: every folder below. Loaded by ``import torch``: no.
"""
