"""``python -m torch_jax profile`` and ``torch_jax.profile``: where the time of a program goes.

``samples`` looks at what Python does, ``kernels`` at what XLA ran, ``profile`` joins the two, and
``page`` tells of them; ``command`` is the command line.

May import: what ``observe`` may. Loaded by ``import torch``: never.
"""
