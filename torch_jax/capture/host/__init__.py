"""What XLA cannot run and each call does again: the tape, and CPU tensors.

May import: capture.capture, capture.state. Loaded by ``import torch``: no.
"""
