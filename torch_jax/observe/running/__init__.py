"""``python -m torch_jax run``: a script as Python runs it, for device ``jax``, and its costs.

May import: what ``observe`` may. Loaded by ``import torch``: only in children of such a script.
"""
