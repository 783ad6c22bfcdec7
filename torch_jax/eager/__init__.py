"""One operator, one compiled entry: what runs each call by itself.

May import: memory, compiler and below. Loaded by ``import torch``: no.
"""
