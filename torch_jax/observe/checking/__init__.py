"""``python -m torch_jax check``: a script's programs, compiled for chips that are elsewhere.

May import: what ``observe`` may. Loaded by ``import torch``: nothing.
"""
