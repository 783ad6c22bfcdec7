"""``torchax.tensor``: the class of the device's tensors, and environments."""

from __future__ import annotations

from typing import Any

import torch

from torch_jax.compat.ax.environment import Environment as Environment
from torch_jax.compat.ax.environment import tensor_of
from torch_jax.core.errors import OperatorNotFound as OperatorNotFound
from torch_jax.interop import crossing
from torch_jax.memory.storage import is_jax


class _OfTheDevice(type):
    """``isinstance`` holds for tensors of the device, which have no class of their own."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and is_jax(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, torch.Tensor)


class Tensor(metaclass=_OfTheDevice):
    """A plain ``torch.Tensor`` on device ``jax``: ``Tensor(array, env)`` makes one of an array."""

    def __new__(cls, elem: Any, env: Any = None, requires_grad: bool = False) -> Any:
        """Return a tensor with the memory of an array."""
        return crossing.tensor(elem) if requires_grad else tensor_of(elem)
