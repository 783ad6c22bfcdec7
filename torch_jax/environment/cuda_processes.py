"""``torch.distributed`` where ``"cuda"`` means jax: the backend ``"nccl"`` is ``"jax"``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_jax._private import dynamo
from torch_jax.environment import callables
from torch_jax.environment.regions import JAX, mapped, redirects_cuda

# Functions that take the name of a backend or of a device.
_TAKERS = "init_process_group new_group new_subgroups init_device_mesh split_group"


def install() -> None:
    """Replace them, where this PyTorch has processes at all."""
    if not torch.distributed.is_available():
        return
    takers = [getattr(torch.distributed, name, None) for name in _TAKERS.split()]
    makers: dict[Any, Callable[[Any], Any]] = {one: _taking for one in takers if one is not None}
    makers[torch.distributed.is_nccl_available] = _available
    for original, places in callables.places(list(makers)).items():
        wrapper = callables.wrapper_of(original, places, makers[original](original))
        callables.replace(places, wrapper)
    kind: Any = torch.distributed.DeviceMesh
    kind.__init__ = functools.wraps(kind.__init__)(dynamo.unseen(_taking(kind.__init__)))


def backend(value: Any) -> Any:
    """A backend, or a device, by the name that it has here.

    >>> backend("nccl"), backend("cpu:gloo,cuda:nccl"), backend("gloo"), backend("tcp://a:1")
    ('jax', 'cpu:gloo,jax:jax', 'gloo', 'tcp://a:1')
    """
    if not isinstance(value, str) or "nccl" not in value.lower().replace(":", ",").split(","):
        return mapped(value)
    pairs = [one.partition(":") for one in value.lower().split(",")]
    if len(pairs) == 1 and not pairs[0][1]:
        return JAX
    return ",".join(":".join((mapped(device), backend(name))) for device, _, name in pairs)


def _taking(original: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if redirects_cuda():
            args = tuple(map(backend, args))
            kwargs = {name: backend(value) for name, value in kwargs.items()}
        return original(*args, **kwargs)

    return call


def _available(original: Any) -> Callable[..., bool]:
    return lambda: redirects_cuda() or original()
