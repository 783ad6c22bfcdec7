"""Devices in an enabled environment: jax for factories, and for ``"cuda"`` if asked."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.core import dynamo_constants, ordinals
from torch_jax.environment import callables, cuda_answers, cuda_names, cuda_tensors, regions
from torch_jax.environment.callables import wrap
from torch_jax.environment.cuda_names import query
from torch_jax.environment.regions import JAX, is_enabled, mapped, renamed, where_cuda

# Python inside PyTorch whose factories make its users' tensors. All other files keep their books
# on the host: the step counts of optimizers, the permutations of samplers.
_FOR_USERS = ("torch.nn", "torch.distributions", "torch.functional", "torch.signal")

# Functions, methods and constructors that take a device somewhere in their arguments.
_LIKE = "zeros_like ones_like empty_like full_like rand_like randn_like randint_like"
_NEW = "new_empty new_empty_strided new_full new_ones new_tensor new_zeros"
_CONSTRUCTORS = (
    (torch.autocast, "__init__"),
    (torch.amp.GradScaler, "__init__"),
    (type(torch.Generator), "__call__"),
    (torch.nn.Module, "to_empty"),
    (torch.UntypedStorage, "__new__"),
    (type(torch.Stream), "__call__"),
    (type(torch.Event), "__call__"),
)

# Functions that ask about the autocast of a device, by default of "cuda".
_AUTOCAST = "is_autocast_enabled set_autocast_enabled get_autocast_dtype set_autocast_dtype"

# Functions that take the name of a backend of processes.
_TAKERS = "init_process_group new_group new_subgroups split_group"

_BEFORE_CUDA = 15  # of the rules by which torch.load places storages, that of CUDA is the 20th

_lock = threading.RLock()
_installed = False


def enable_globally() -> None:
    """Enable the environment on every thread, running ones included."""
    install()
    regions.everywhere(True)


def install() -> None:
    """Replace PyTorch's callables, once, by ones that ask whether their caller has enabled it."""
    global _installed
    with _lock:
        if not _installed:
            _replace()
            _installed = True


def _replace() -> None:
    functions = [getattr(torch, name) for name in _LIKE.split()]
    methods = [getattr(torch.Tensor, name) for name in _NEW.split()]
    makers = dict.fromkeys((*functions, *methods), _mapped)
    callables.replace_all(makers | dict.fromkeys(pytorch.factories(), _factory))
    for owner, name in (*_CONSTRUCTORS, *pytorch.takers_of_devices()):
        wrap(owner, name, _mapped)
    torch.serialization.register_package(_BEFORE_CUDA, lambda storage: None, _restored)
    for owner in (torch.Tensor, torch.nn.Module):
        wrap(owner, "to", _moved)
    for kind in (torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.TypedStorage):
        wrap(kind, "cuda", _to_jax)
    parallel = sys.modules[torch.nn.DataParallel.__module__]
    wrap(parallel, "_get_available_device_type", functools.partial(query, cuda_answers.nothing))
    _redirect_autocast()
    cuda_names.install()
    cuda_tensors.install()
    if torch.distributed.is_available():
        _redirect_processes()
    torch.get_default_device = functools.wraps(torch.get_default_device)(
        _default_device(torch.get_default_device)
    )


def _redirect_autocast() -> None:
    """Replace functions that ask about autocast, in all modules that hold them.

    Dynamo, if it is imported later, finds the replacements by their names, and learns that the
    originals return constants.
    """
    makers: dict[Any, Callable[[Any], Any]] = {}
    for name in _AUTOCAST.split():
        original = getattr(torch, name)
        makers[original] = _of_autocast
        if not name.startswith("set"):
            dynamo_constants.constant(original)
    makers[torch.get_autocast_gpu_dtype] = functools.partial(
        query, lambda: torch.get_autocast_dtype(JAX)
    )
    callables.replace_all(makers)


def _redirect_processes() -> None:
    """Replace functions of ``torch.distributed``: the backend ``"nccl"`` is ``"jax"``."""
    takers = (getattr(torch.distributed, name, None) for name in _TAKERS.split())
    makers = dict.fromkeys(filter(None, takers), _of_backends)  # some builds have none
    makers[torch.distributed.init_device_mesh] = _mapped
    makers[torch.distributed.is_nccl_available] = where_cuda(lambda _original: True)
    callables.replace_all(makers)
    wrap(torch.distributed.DeviceMesh, "__init__", _mapped)


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


@where_cuda
def _of_backends(original: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs = {name: backend(value) for name, value in kwargs.items()}
    return original(*map(backend, args), **kwargs)


def _factory(original: Any) -> Callable[..., Any]:
    def factory(*args: Any, **kwargs: Any) -> Any:
        if is_enabled():
            if torch.compiler.is_dynamo_compiling():
                caller = dynamo_constants.traced_module()
            else:
                caller = sys._getframe(1).f_globals.get("__name__", "")
            kwargs = _with_device(kwargs, caller)
        if kwargs.get("device") is not None and (words := renamed()):
            is_cuda = type(kwargs["device"]) is int and "cuda" in words  # a number is CUDA's
            kwargs = kwargs | {"device": JAX if is_cuda else mapped(kwargs["device"], words)}
        return original(*args, **kwargs)

    return factory


def _with_device(kwargs: dict[str, Any], caller: str) -> dict[str, Any]:
    device = kwargs.get("device")
    if device is not None or kwargs.get("pin_memory"):
        return _unpinned(kwargs | {"device": "cpu" if device is None else device})
    elsewhere = kwargs.get("out") is not None
    inside = caller.startswith("torch.") and not caller.startswith(_FOR_USERS)
    if elsewhere or inside or not regions.fills_in():
        return kwargs
    if pytorch.function_modes() and pytorch.default_device():
        return kwargs
    return kwargs | {"device": JAX}


def _unpinned(kwargs: dict[str, Any], *like: Any) -> dict[str, Any]:
    """Drop ``pin_memory`` for tensors on the CPU: see ``torch.Tensor.pin_memory``."""
    if not kwargs.get("pin_memory"):
        return kwargs
    device = kwargs.get("device") or getattr(like[0] if like else None, "device", None)
    if str(device) != "cpu":
        return kwargs
    torch.empty(0, device="cpu").pin_memory()  # which warns once
    return kwargs | {"pin_memory": False}


def _mapped(original: Any) -> Callable[..., Any]:
    """Return ``original`` with every device among its arguments replaced that means jax."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if words := renamed():
            args = tuple([mapped(value, words) for value in args])
            kwargs = {name: mapped(value, words) for name, value in kwargs.items()}
        if kwargs.get("pin_memory") and is_enabled():
            kwargs = _unpinned(kwargs, *args[:1])
        return original(*args, **kwargs)

    return call


def _moved(original: Any) -> Callable[..., Any]:
    """Return ``x.to(...)``, whose first argument may be the number of a device."""
    move = _mapped(original)

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int and regions.redirects_cuda():
            args = (JAX, *args[1:])
        return move(self, *args, **kwargs)

    return to


def _restored(storage: Any, location: str) -> Any:
    """Return the storage of a file on jax if its device means jax here."""
    if location.partition(":")[0] not in renamed():
        return None  # another rule of PyTorch's is asked
    return torch.serialization.default_restore_location(storage, JAX)


@where_cuda
def _to_jax(_original: Any, self: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Return ``x.cuda()``."""
    return self.to(device=JAX)


def _of_autocast(original: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        words = renamed()
        if "cuda" in words and not (args and isinstance(args[0], str)):
            args = (JAX, *args)  # the deprecated form without a device type
        return original(*[mapped(value, words) for value in args[:1]], *args[1:], **kwargs)

    return call


def _default_device(original: Any) -> Callable[..., Any]:
    def get_default_device() -> torch.device:
        chosen = pytorch.default_device() is not None or not config.get("redirect_default")
        return original() if chosen or not is_enabled() else torch.device(JAX, 0)

    return get_default_device
