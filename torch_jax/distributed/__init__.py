"""Work on many devices: one process with a mesh of them, or many processes.

May import: capture, graphs, and what stands below. Loaded by ``import torch``: no.
"""
