"""Everything that replaces something of PyTorch's or of another library's.

May import: capture, graphs and below. Loaded by ``import torch``: in part.
"""
