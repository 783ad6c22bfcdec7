"""JAX asks a tensor for an array: tensors of the device give their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import AT_FIRST_USE, patch
from torch_jax.memory import border


@patch("torch.Tensor", AT_FIRST_USE, is_registration=True)
def _add_jax_array(kind: Any) -> Callable[[], None]:
    """``jax.numpy.asarray`` asks for ``__jax_array__``, which PyTorch's tensors do not have.

    It is a property that tensors of other devices do not have, so JAX treats those as before.
    """
    kind.__jax_array__ = property(_jax_array)
    return lambda: delattr(kind, "__jax_array__")


def _jax_array(self: torch.Tensor) -> Callable[[], Any]:
    if self.device.type != pytorch.DEVICE_TYPE:
        raise AttributeError(f"a tensor on {self.device} has no __jax_array__")
    return lambda: border.array_of(self)
