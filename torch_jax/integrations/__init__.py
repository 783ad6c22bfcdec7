"""Libraries that train: they find the device by themselves, and run a whole step as one program.

May import: everything but startup. Loaded by ``import torch``: the list of what is to be changed in
which library; the changes themselves come right after that library's import.
"""
