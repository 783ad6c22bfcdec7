"""``python -m torch_jax profile`` and ``torch_jax.profile``: the time of a program, in parts.

``samples`` looks at Python's stack, ``kernels`` at XLA's kernels, ``profile`` joins and prints the
two; ``command`` is the command line.

May import: what ``observe`` may. Loaded by ``import torch``: never.
"""
