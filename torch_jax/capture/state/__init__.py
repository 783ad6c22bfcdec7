"""What of Python's state a compiled function reads and changes, and how later calls see it.

May import: nothing of capture. Loaded by ``import torch``: no.
"""
