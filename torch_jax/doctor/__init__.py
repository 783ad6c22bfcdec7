"""``python -m torch_jax doctor``: what is installed, how it is set up, and whether it works.

May import everything: it looks at all of it. Loaded by ``import torch``: no.
"""
