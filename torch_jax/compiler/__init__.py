"""Jaxprs and executables: lowered, compiled, kept in the process and on disk.

May import: core and below. Loaded by ``import torch``: no.
"""
