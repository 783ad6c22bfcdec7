"""The recording executor: operators are written down, and what they make is run as one program.

May import: eager, device, and what stands below. Loaded by ``import torch``: no.
"""
