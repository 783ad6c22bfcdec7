"""Replacements of functions and classes of PyTorch's and other libraries'.

May import: capture, graphs and below. Loaded by ``import torch``: in part.
"""
