"""``python -m torch_jax profile`` and ``torch_jax.profile``: the time of a program, in parts.

May import: what ``observe`` may. Loaded by ``import torch``: never.
"""
