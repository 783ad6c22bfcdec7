"""Helpers of training loops: batches on the device, masters, the policy of a checkpoint.

May import: recorded, and floors below. Loaded by ``import torch``: no.
"""
