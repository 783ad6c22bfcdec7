"""The recording executor: operators are written down, and what they make is run as one program.

May import: eager, device, and the floors below. Loaded by ``import torch``: no.
"""
