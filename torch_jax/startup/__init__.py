"""The work at ``import torch``, at the first use of the device, and at the end of the process.

May import: every folder below. Loaded by ``import torch``: yes.
"""
