"""Changes to libraries so that they find the device: rows of the table of patches.

May import: what ``integrations`` may. Loaded by ``import torch``: no, but by the import of each
library.
"""
