"""``python -m torch_jax doctor``: an examination of the installation, its settings and the device.

May import everything: it examines all rooms. Loaded by ``import torch``: no.
"""
