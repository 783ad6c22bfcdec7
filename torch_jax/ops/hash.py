"""Hashes of the bits of tensors."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_jax.ops.promotion import category
from torch_jax.ops.reduction import axes
from torch_jax.ops.registry import op


@op("hash_tensor")
def hash_tensor(self, dim=(), *, keepdim=False, mode=0):
    """Return the exclusive or of the bits of all elements, as float64 or int64, in uint64."""
    wide = self.astype(np.float64 if category(self.dtype) == 2 else np.int64)
    bits = lax.bitcast_convert_type(wide, np.uint64)
    dims = axes(self, dim)
    result = lax.reduce(bits, np.uint64(0), lax.bitwise_xor, dims)
    return jnp.expand_dims(result, dims) if keepdim else result
