"""``torch_xla.utils.checkpoint``: PyTorch's own."""

import functools

from torch.utils import checkpoint as own

checkpoint = functools.partial(own.checkpoint, use_reentrant=True)
