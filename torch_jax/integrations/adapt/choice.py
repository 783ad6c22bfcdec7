"""The choice of this device for a library that looks for one, and the device's name there."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from torch_jax._private import pytorch

DEVICE = torch.device(pytorch.DEVICE_TYPE, 0)


def is_chosen() -> bool:
    """Return whether PyTorch's accelerator is this device, and no CUDA device is there."""
    return pytorch.is_accelerator() and not pytorch.has_cuda()


def is_left(found: str) -> bool:
    """Return whether a library that has found a device of this type is to take this device instead.

    It finds ``"cuda"`` if that means this device, and no CUDA device is there.
    """
    return found in ("cpu", "cuda") and is_chosen()


def is_device(device: Any) -> bool:
    """Return whether a ``torch.device``, or its name, is this device."""
    return device is not None and torch.device(device).type == pytorch.DEVICE_TYPE


def admit(function: Any, beside: str) -> Any:
    """Return the function, with this device in the lists of devices that it holds as constants.

    ``if device.type not in ("cuda", "xpu")``, in the middle of a long function, keeps other devices
    out. A list is a constant tuple of names; those that name the device ``beside`` get this one,
    too.

    >>> def is_fast(name):
    ...     return name in ("cuda", "xpu")
    >>> is_fast("jax"), admit(is_fast, "xpu")("jax"), admit(is_fast, "xpu")("cpu")
    (False, True, False)
    """
    constants = tuple(
        (*one, pytorch.DEVICE_TYPE) if isinstance(one, tuple) and beside in one else one
        for one in function.__code__.co_consts
    )
    made = types.FunctionType(
        function.__code__.replace(co_consts=constants),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(made, function)
