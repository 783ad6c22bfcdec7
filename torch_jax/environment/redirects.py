"""Where tensors go in an enabled environment: factories to jax, and ``"cuda"`` to jax if asked.

PyTorch's callables are replaced (:mod:`torch_jax.environment.callables`) when an environment is
first enabled. Each asks whether it is enabled for its caller, and is the original where it is not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from torch_jax import config
from torch_jax._private import dynamo, pytorch
from torch_jax.core import dynamo_constants
from torch_jax.device import device_module, streams
from torch_jax.environment import callables
from torch_jax.memory import generators

_JAX = pytorch.DEVICE_TYPE

# Python inside PyTorch whose factories make its users' tensors. The rest keeps its books on the
# host: the step counts of optimizers, the permutations of samplers.
_FOR_USERS = ("torch.nn", "torch.distributions", "torch.functional", "torch.signal")

# Functions, methods and constructors that take a device somewhere in their arguments.
_LIKE = "zeros_like ones_like empty_like full_like rand_like randn_like randint_like"
_NEW = "to new_empty new_empty_strided new_full new_ones new_tensor new_zeros"
_CONSTRUCTORS = (
    (torch.autocast, "__init__"),
    (torch.amp.GradScaler, "__init__"),
    (generators.Generator, "__new__"),
    (torch.nn.Module, "to"),
    (torch.nn.Module, "to_empty"),
)

# What torch.cuda has and torch.jax answers.
_ANSWERS = {
    name: value
    for name, value in vars(device_module).items()
    if callable(value)
    and not name.startswith("_")
    and getattr(value, "__module__", "") in (device_module.__name__, streams.__name__)
    and hasattr(torch.cuda, name)
} | {"get_device_capability": device_module.compute_capability}

# Marks for NVIDIA's tools, which see nothing of this device.
_MARKS = (
    (torch.cuda.nvtx, "range_push range_pop range_start range_end mark"),
    (torch.cuda.profiler, "start stop"),
)

# Functions that ask about the autocast of a device, "cuda" where they are given none.
_AUTOCAST = "is_autocast_enabled set_autocast_enabled get_autocast_dtype set_autocast_dtype"

_is_enabled: Callable[[], bool] = lambda: False  # noqa: E731


def install(is_enabled: Callable[[], bool]) -> None:
    """Replace PyTorch's callables with ones that ask ``is_enabled``; once."""
    global _is_enabled
    _is_enabled = is_enabled
    factories = list(pytorch.factories())
    functions = [getattr(torch, name) for name in _LIKE.split()]
    methods = [getattr(torch.Tensor, name) for name in _NEW.split()]
    found = callables.places([*factories, *functions, *methods])
    for original, places in found.items():
        make = _factory if original in factories else _mapped
        callables.replace(places, callables.wrapper_of(original, places, make(original)))
    for owner, name in (*_CONSTRUCTORS, *pytorch.takers_of_devices()):
        _wrap(owner, name, _mapped)
    _wrap(torch, "load", _loading)
    for kind in (torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.TypedStorage):
        _wrap(kind, "cuda", _to_jax)
    _wrap(torch.nn.DataParallel, "__init__", _one_device)
    _redirect_functions()
    _redirect_classes()
    torch.get_default_device = functools.wraps(torch.get_default_device)(
        _default_device(torch.get_default_device)
    )


def _redirect_functions() -> None:
    """Those of ``torch.cuda``, and those that ask about autocast, by whatever module holds them."""
    answers = {getattr(torch.cuda, name): answer for name, answer in _ANSWERS.items()}
    makers = {
        original: functools.partial(_query, answer)
        for original, answer in answers.items()
        if not isinstance(original, type)
    }
    makers |= {getattr(torch, name): _of_autocast for name in _AUTOCAST.split()}
    makers[torch.get_autocast_gpu_dtype] = functools.partial(_query, _autocast_dtype)
    for module, names in _MARKS:
        makers |= {
            getattr(module, name): functools.partial(_query, _mark) for name in names.split()
        }
    for original, places in callables.places(list(makers)).items():
        wrapper = callables.wrapper_of(original, places, makers[original](original))
        callables.replace(places, wrapper)


def _redirect_classes() -> None:
    """Those of ``torch.cuda`` make what ``torch.jax`` has of the same name."""
    for name, answer in _ANSWERS.items():
        kind = getattr(torch.cuda, name)
        if isinstance(kind, type):
            _wrap(kind, "__new__", functools.partial(_instance, kind, answer))
    _wrap(torch.cuda.CUDAGraph, "__new__", functools.partial(_instance, None, _refuse_graph))


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(dynamo.unseen(make(original))))


@dynamo_constants.question
def redirects_cuda() -> bool:
    """Whether ``"cuda"`` means jax to the caller."""
    return _is_enabled() and config.get("redirect_cuda")


@dynamo_constants.question
def _fills_in() -> bool:
    """Whether a factory that is given no device makes tensors on jax."""
    return config.get("redirect_default")


def _factory(original: Any) -> Callable[..., Any]:
    def factory(*args: Any, **kwargs: Any) -> Any:
        if _is_enabled():
            if torch.compiler.is_dynamo_compiling():
                caller = dynamo_constants.traced_module()
            else:
                caller = sys._getframe(1).f_globals.get("__name__", "")
            kwargs = _with_device(kwargs, caller)
        return original(*args, **kwargs)

    return factory


def _with_device(kwargs: dict[str, Any], caller: str) -> dict[str, Any]:
    device = kwargs.get("device")
    if device is None and kwargs.get("pin_memory"):
        return _unpinned(kwargs | {"device": "cpu"})
    if device is not None:
        kwargs = _unpinned(kwargs)
        return kwargs | {"device": _map(device)} if redirects_cuda() else kwargs
    elsewhere = kwargs.get("out") is not None
    inside = caller.startswith("torch.") and not caller.startswith(_FOR_USERS)
    if elsewhere or inside or not _fills_in():
        return kwargs
    if pytorch.function_modes() and pytorch.default_device():
        return kwargs
    return kwargs | {"device": _JAX}


def _unpinned(kwargs: dict[str, Any], *like: Any) -> dict[str, Any]:
    """There is no pinned memory for tensors on the CPU: see ``torch.Tensor.pin_memory``."""
    if not kwargs.get("pin_memory"):
        return kwargs
    device = kwargs.get("device") or getattr(like[0] if like else None, "device", None)
    if str(device) != "cpu":
        return kwargs
    torch.empty(0, device="cpu").pin_memory()  # which says so, once
    return kwargs | {"pin_memory": False}


def _mapped(original: Any) -> Callable[..., Any]:
    """``original`` with every CUDA device among its arguments become jax."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if redirects_cuda():
            args = tuple(map(_map, args))
            kwargs = {name: _map(value) for name, value in kwargs.items()}
        if kwargs.get("pin_memory") and _is_enabled():
            kwargs = _unpinned(kwargs, *args[:1])
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
        return self.to(device=_JAX) if redirects_cuda() else original(self, *args, **kwargs)

    return cuda


def _query(answer: Any, original: Any) -> Callable[..., Any]:
    """A function of ``torch.cuda``, which ``torch.jax`` answers."""

    def query(*args: Any, **kwargs: Any) -> Any:
        if redirects_cuda():
            return answer(*map(_map, args), **{name: _map(v) for name, v in kwargs.items()})
        return original(*args, **kwargs)

    return query


def _instance(kind: Any, answer: Any, original: Any) -> Callable[..., Any]:
    """``__new__`` of a class of ``torch.cuda``, in whose place ``answer`` makes the instance."""

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        if redirects_cuda() and (kind is None or cls is kind):
            return _query(answer, None)(*args, **kwargs)
        return original(cls) if original is object.__new__ else original(cls, *args, **kwargs)

    return __new__


def _refuse_graph(*_args: Any, **_kwargs: Any) -> None:
    raise RuntimeError(
        "device 'jax' has no CUDA graphs: what they replay is what torch_jax.jit(function) compiles"
    )


def _mark(*_args: Any, **_kwargs: Any) -> int:
    return 0


def _of_autocast(original: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not redirects_cuda():
            return original(*args, **kwargs)
        if not args or not isinstance(args[0], str):  # the deprecated form without a device type
            args = (_JAX, *args)
        return original(_map(args[0]), *args[1:], **kwargs)

    return call


def _autocast_dtype() -> torch.dtype:
    return torch.get_autocast_dtype(_JAX)


def _one_device(original: Any) -> Callable[..., Any]:
    """``DataParallel`` runs its module, as it does where there is nothing to be parallel on."""

    def __init__(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        original(self, module, *args, **kwargs)
        if redirects_cuda():
            self.device_ids = []

    return __init__


def _default_device(original: Any) -> Callable[..., Any]:
    def get_default_device() -> torch.device:
        chosen = pytorch.default_device() is not None or not config.get("redirect_default")
        return original() if chosen or not _is_enabled() else torch.device(_JAX, 0)

    return get_default_device
