"""``torch.distributed`` where other devices mean jax: the backend ``"nccl"`` is ``"jax"``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_jax._private import dynamo
from torch_jax.core import ordinals
from torch_jax.environment import callables
from torch_jax.environment.regions import JAX, mapped, redirects_cuda, renamed

# Functions that take the name of a backend, and ones that take that of a device.
_TAKERS = "init_process_group new_group new_subgroups split_group"
_PLACED = "init_device_mesh"


def install() -> None:
    """Replace these functions, if this PyTorch has processes at all."""
    if not torch.distributed.is_available():
        return
    makers: dict[Any, Callable[[Any], Any]] = {
        getattr(torch.distributed, name): make
        for names, make in ((_TAKERS, _taking), (_PLACED, _placed))
        for name in names.split()
        if hasattr(torch.distributed, name)
    }
    makers[torch.distributed.is_nccl_available] = _available
    for original, places in callables.places(list(makers)).items():
        wrapper = callables.wrapper_of(original, places, makers[original](original))
        callables.replace(places, wrapper)
    kind: Any = torch.distributed.DeviceMesh
    kind.__init__ = functools.wraps(kind.__init__)(dynamo.unseen(_placed(kind.__init__)))


def backend(value: Any) -> Any:
    """Return a backend, or a device, by the name that it has here.

    >>> backend("nccl"), backend("cpu:gloo,cuda:nccl"), backend("gloo"), backend("tcp://a:1")
    ('jax', 'cpu:gloo,jax:jax', 'gloo', 'tcp://a:1')
    """
    if isinstance(value, torch.device) and value.type in ("cuda", JAX) and value.index is not None:
        return torch.device(JAX, ordinals.known(value.index))  # PyTorch asks for a number
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


def _placed(original: Any) -> Callable[..., Any]:
    """Return ``original`` with those devices among its arguments replaced that mean jax."""

    def call(*args: Any, **kwargs: Any) -> Any:
        words = renamed()
        args = tuple(mapped(value, words) for value in args)
        return original(*args, **{name: mapped(value, words) for name, value in kwargs.items()})

    return call


def _available(original: Any) -> Callable[..., bool]:
    return lambda: redirects_cuda() or original()
