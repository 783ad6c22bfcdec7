"""``python -m torch_jax plan``: a Llama's training step, compiled before the chips are there.

May import everything: its model is a program like a user's. Loaded by ``import torch``: no.
"""
