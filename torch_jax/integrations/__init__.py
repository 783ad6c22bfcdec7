"""Libraries that train: they find the device by themselves, and run a whole step as one program.

May import: everything but startup. Loaded by ``import torch``: the list of changes to libraries;
the changes themselves come right after a library's import.
"""
