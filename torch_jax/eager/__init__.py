"""One operator, one compiled entry: the executor of single calls.

May import: memory, compiler and below. Loaded by ``import torch``: no.
"""
