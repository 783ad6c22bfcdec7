"""Names of the bridges PyTorch/XLA and torchax, carried onto those of this package.

May import: everything but startup. Loaded by ``import torch``: no.
"""

from torch_jax.compat.install import install as install
