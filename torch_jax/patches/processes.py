"""Tensors that are sent to other processes."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from torch_jax._private import pytorch
from torch_jax.core.patching import AT_FIRST_USE, patch

_JAX = pytorch.DEVICE_TYPE


@patch("multiprocessing.reduction.ForkingPickler.register", AT_FIRST_USE, is_registration=True)
def _send_by_value(_register: Any) -> Callable[[], None]:
    """Processes cannot share memory of the device, so tensors are sent by value."""
    reductions = torch.multiprocessing.reductions
    of_tensor = _for_jax(_send_tensor, reductions.reduce_tensor)
    of_storage = _for_jax(_send_storage, reductions.reduce_storage)

    def enter(of_tensor: Any, of_storage: Any) -> None:
        for kind in (torch.Tensor, torch.nn.Parameter):
            ForkingPickler.register(kind, of_tensor)
        ForkingPickler.register(torch.UntypedStorage, of_storage)

    enter(of_tensor, of_storage)
    return lambda: enter(reductions.reduce_tensor, reductions.reduce_storage)


def _for_jax(ours: Any, theirs: Any) -> Any:
    def reduce(value: Any) -> Any:
        return (ours if value.device.type == _JAX else theirs)(value)

    return reduce


def _send_tensor(tensor: torch.Tensor) -> Any:
    if tensor.requires_grad and not tensor.is_leaf:
        return torch.multiprocessing.reductions.reduce_tensor(tensor)  # which raises
    return tensor.__reduce_ex__(2)


def _send_storage(storage: torch.UntypedStorage) -> Any:
    """Return how to send the bytes: once, even if several tensors of one message share them."""
    host = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu())
    return _receive_storage, (host.numpy(),)


def _receive_storage(data: Any) -> torch.UntypedStorage:
    return torch.from_numpy(data).to(_JAX).untyped_storage()
