"""Work on many devices: one process with a mesh of them, or many processes.

Stands on everything below ``patches``. ``import torch`` does not load it.
"""
