"""Methods of torchax's tensors; applied when ``torch_jax.compat.torchax`` is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import patch
from torch_jax.memory import border

_MISSING: Any = object()


@patch("torch.Tensor.jax", "torchax", is_registration=True)
def _add_methods(move: Callable[..., Any]) -> Callable[[], None]:
    """Programs for torchax expect an array from ``x.jax()``, with which PyTorch moves a tensor.

    A tensor on another device is still moved, and so is one in a call with arguments, such as
    those of ``module.jax()``.
    """

    def as_array(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return the array of a tensor on the device; of any other, its copy on the device."""
        is_asked = self.device.type == pytorch.DEVICE_TYPE and not (args or kwargs)
        return _array(self) if is_asked else move(self, *args, **kwargs)

    methods = {
        "jax": as_array,
        "torch": torch.Tensor.cpu,
        "jax_device": property(lambda self: _array(self).device),
        "apply_jax": _apply,
        "apply_jax_": _apply_in_place,
        "shard_": _shard_in_place,
    }
    before = {name: vars(torch.Tensor).get(name, _MISSING) for name in methods}
    _put(methods)
    return lambda: _put(before)


def _put(methods: dict[str, Any]) -> None:
    for name, method in methods.items():
        if method is _MISSING:
            delattr(torch.Tensor, name)
        else:
            setattr(torch.Tensor, name, method)


def _array(tensor: torch.Tensor) -> Any:
    return border.array_of(tensor.detach())


def _apply(self: torch.Tensor, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a JAX function for a tensor's array, as a tensor."""
    return jax.tree.map(border.tensor_of, function(_array(self), *args, **kwargs))


def _apply_in_place(
    self: torch.Tensor, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Replace a tensor's value by the result of a JAX function for its array."""
    self.data = border.tensor_of(function(_array(self), *args, **kwargs))
    return self


def _shard_in_place(self: torch.Tensor, sharding: Any) -> torch.Tensor:
    """Lay a tensor over devices by a ``jax.sharding.Sharding``."""
    return _apply_in_place(self, jax.lax.with_sharding_constraint, sharding)
