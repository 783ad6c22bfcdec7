"""What the device did, and when: XLA's trace beside that of PyTorch's profiler.

May import: what `device` may. Loaded by ``import torch``: no.
"""
