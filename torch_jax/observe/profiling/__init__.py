"""``python -m torch_jax profile`` and ``torch_jax.profile``: the time of a program, in parts.

``samples`` looks at Python's stack, ``profile`` adds XLA's kernels and prints both.

May import: what ``observe`` may. Loaded by ``import torch``: never.
"""
