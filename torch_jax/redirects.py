"""Where tensors go in an enabled environment: factories to jax, and ``"cuda"`` to jax if asked.

PyTorch's callables are replaced (:mod:`torch_jax.callables`) when an environment is first enabled.
Each asks whether it is enabled for its caller, and is the original where it is not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from torch_jax import _internals, callables, config, device_module, random

_JAX = _internals.DEVICE_TYPE

# Python inside PyTorch whose factories make its users' tensors. The rest keeps its books on the
# host: the step counts of optimizers, the permutations of samplers.
_FOR_USERS = ("torch.nn", "torch.distributions", "torch.functional", "torch.signal")

# Functions, methods and constructors that take a device somewhere in their arguments.
_LIKE = "zeros_like ones_like empty_like full_like rand_like randn_like randint_like"
_NEW = "to new_empty new_empty_strided new_full new_ones new_tensor new_zeros"
_CONSTRUCTORS = (
    (torch.autocast, "__init__"),
    (torch.amp.GradScaler, "__init__"),
    (random.Generator, "__new__"),
    (torch.nn.Module, "to"),
    (torch.nn.Module, "to_empty"),
)

# What torch.cuda has and torch.jax answers; streams and events are classes, and stay CUDA's.
_QUERIES = [
    name
    for name, value in vars(device_module).items()
    if not name.startswith("_")
    and callable(value)
    and not isinstance(value, type)
    and getattr(value, "__module__", "") == device_module.__name__
    and hasattr(torch.cuda, name)
]

_is_enabled: Callable[[], bool] = lambda: False  # noqa: E731


def install(is_enabled: Callable[[], bool]) -> None:
    """Replace PyTorch's callables with ones that ask ``is_enabled``; once."""
    global _is_enabled
    _is_enabled = is_enabled
    factories = list(_internals.factories())
    functions = [getattr(torch, name) for name in _LIKE.split()]
    methods = [getattr(torch.Tensor, name) for name in _NEW.split()]
    found = callables.places([*factories, *functions, *methods])
    for original, places in found.items():
        make = _factory if original in factories else _mapped
        callables.replace(places, callables.wrapper_of(original, places, make(original)))
    for owner, name in (*_CONSTRUCTORS, *_internals.device_contexts()):
        _wrap(owner, name, _mapped)
    _wrap(torch, "load", _loading)
    _wrap(torch.Tensor, "cuda", _to_jax)
    _wrap(torch.nn.Module, "cuda", _to_jax)
    for name in _QUERIES:
        _wrap(torch.cuda, name, functools.partial(_query, getattr(device_module, name)))
    torch.get_default_device = functools.wraps(torch.get_default_device)(
        _default_device(torch.get_default_device)
    )


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def redirects_cuda() -> bool:
    """Whether ``"cuda"`` means jax to the caller."""
    return _is_enabled() and config.get("redirect_cuda")


def _factory(original: Any) -> Callable[..., Any]:
    def factory(*args: Any, **kwargs: Any) -> Any:
        if _is_enabled():
            kwargs = _with_device(kwargs, sys._getframe(1).f_globals.get("__name__", ""))
        return original(*args, **kwargs)

    return factory


def _with_device(kwargs: dict[str, Any], caller: str) -> dict[str, Any]:
    device = kwargs.get("device")
    if device is not None:
        return kwargs | {"device": _map(device)} if config.get("redirect_cuda") else kwargs
    elsewhere = kwargs.get("out") is not None or kwargs.get("pin_memory")
    inside = caller.startswith("torch.") and not caller.startswith(_FOR_USERS)
    if elsewhere or inside or not config.get("redirect_default") or _internals.default_device():
        return kwargs
    return kwargs | {"device": _JAX}


def _mapped(original: Any) -> Callable[..., Any]:
    """``original`` with every CUDA device among its arguments become jax."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if redirects_cuda():
            args = tuple(map(_map, args))
            kwargs = {name: _map(value) for name, value in kwargs.items()}
        return original(*args, **kwargs)

    return call


def _map(value: Any) -> Any:
    """``"cuda"``, ``"cuda:0"`` and CUDA devices as jax; other values as they are."""
    if isinstance(value, torch.device):
        return torch.device(_JAX) if value.type == "cuda" else value
    is_name = isinstance(value, str) and value.partition(":")[0] == "cuda"
    return _JAX if is_name else value


def _loading(original: Any) -> Callable[..., Any]:
    """``torch.load``, for which tensors that were saved on CUDA come to jax."""

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if redirects_cuda():
            map_location = _map(map_location)
            map_location = _SAVED_ON_CUDA if map_location is None else map_location
        return original(f, map_location, *args, **kwargs)

    return load


_SAVED_ON_CUDA = {f"cuda:{index}": _JAX for index in range(64)} | {"cuda": _JAX}


def _to_jax(original: Any) -> Callable[..., Any]:
    """``x.cuda()``."""

    def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.to(_JAX) if redirects_cuda() else original(self, *args, **kwargs)

    return cuda


def _query(answer: Any, original: Any) -> Callable[..., Any]:
    """A function of ``torch.cuda``, which ``torch.jax`` answers."""

    def query(*args: Any, **kwargs: Any) -> Any:
        if redirects_cuda():
            return answer(*map(_map, args), **{name: _map(v) for name, v in kwargs.items()})
        return original(*args, **kwargs)

    return query


def _default_device(original: Any) -> Callable[..., Any]:
    def get_default_device() -> torch.device:
        chosen = _internals.default_device() is not None or not config.get("redirect_default")
        return original() if chosen or not _is_enabled() else torch.device(_JAX, 0)

    return get_default_device
