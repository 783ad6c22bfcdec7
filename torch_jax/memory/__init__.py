"""Tensors as arrays: the array behind a storage, views of it, copies, dtypes, generators.

May import: core, ops and below. Loaded by ``import torch``: in part.
"""
