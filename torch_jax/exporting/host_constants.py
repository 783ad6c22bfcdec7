"""CPU tensors that a model on the CPU uses while it is exported.

A tensor that is neither parameter nor buffer (a plain attribute, one in a list, one of a closure,
one made with ``device="cpu"``) becomes a constant of the program where it meets a tensor of the
device; a tensor that is moved to the CPU stays on its device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torch_jax._private import pytorch
from torch_jax.eager import variants
from torch_jax.memory import transfer
from torch_jax.memory.storage import is_jax_tensor

_DEVICE = torch.device(pytorch.DEVICE_TYPE)


class Constants(pytorch.OperatorMode):
    """Takes CPU tensors over to the device, for operators that meet both."""

    def __init__(self) -> None:
        super().__init__()
        self._moved: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        ours = isinstance(func, OpOverload) and any(map(is_jax_tensor, pytree.tree_leaves(args)))
        if ours and kwargs.get("device") is not None:
            kwargs["device"] = _DEVICE
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if not ours or "to be on the same device" not in str(error):
                raise
        written = {id(tensor) for tensor in variants.written(func, args, kwargs)}
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: t if id(t) in written else self._on_device(t), (args, kwargs)
        )
        return func(*args, **kwargs)

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        version = 0 if tensor.is_inference() else tensor._version
        known = self._moved.get(id(tensor))
        if known is None or known[1] != version:
            known = self._moved[id(tensor)] = tensor, version, transfer.to_device(tensor)
        return known[2]
