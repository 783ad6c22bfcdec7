"""What training loops ask for by name: batches on the device, masters, what a checkpoint keeps.

May import: recorded, and what stands below. Loaded by ``import torch``: no.
"""
