"""The device's work over time: XLA's trace beside that of PyTorch's profiler.

May import: as `device`. Loaded by ``import torch``: no.
"""
