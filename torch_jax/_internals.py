"""Every private PyTorch and JAX name that torch_jax relies on, looked up tolerantly.

Nothing here runs work. A name that the installed release lacks becomes a function that raises
a clear error when it is *used*, so that ``import torch`` is never broken by a missing symbol.
JAX is imported only by functions, at the first use of the device.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

DEVICE_TYPE = "jax"


def _lookup(path: str) -> Any:
    """Return ``torch.<path>``, or a function that raises when the installed torch lacks it."""
    module_name, _, attribute = f"torch.{path}".rpartition(".")
    try:
        owner: Any = torch
        for part in module_name.split(".")[1:]:
            owner = getattr(owner, part)
        return getattr(owner, attribute)
    except AttributeError:
        return _missing(f"torch.{path}")


def _missing(name: str) -> Callable[..., Any]:
    def raise_missing(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(
            f"torch_jax needs the private name '{name}', which torch {torch.__version__} lacks. "
            "Install a torch release that torch_jax supports (torch>=2.11)."
        )

    return raise_missing


create_empty_tensor = _lookup("_C._acc.create_empty_tensor")
backend_name = _lookup("_C._get_privateuse1_backend_name")
storage_use_count = getattr(torch._C, "_storage_Use_Count", lambda address: 1 << 30)
swap_tensor_impl = _lookup("_C._swap_tensor_impl")
has_kernel = _lookup("_C._dispatch_has_kernel_for_dispatch_key")
all_op_names = _lookup("_C._dispatch_get_all_op_names")
TensorBase = _lookup("_C.TensorBase")
CpuGenerator = _lookup("_C.Generator")
PRIVATE_USE1 = _lookup("_C._autograd.DeviceType.PrivateUse1")

_acc = getattr(torch._C, "_acc", None)
HookBase: Any = getattr(_acc, "PrivateUse1Hooks", object)
GuardBase: Any = getattr(_acc, "DeviceGuard", object)

_exclude_keys = _lookup("_C._ExcludeDispatchKeyGuard")
AUTOCAST_KEYS = torch._C.DispatchKeySet(_lookup("_C.DispatchKey.AutocastPrivateUse1"))
META_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)


def setup_python_backend(name: str, module: Any, hook: Any, guard: Any) -> None:
    """Rename PrivateUse1 to ``name`` and install module, hook and guard for it.

    See ``torch.utils.backend_registration._setup_privateuseone_for_python_backend``.
    """
    registration = importlib.import_module("torch.utils.backend_registration")
    name_ = "_setup_privateuseone_for_python_backend"
    setup = getattr(registration, name_, _missing(f"torch.utils.backend_registration.{name_}"))
    setup(rename=name, backend_module=module, hook=hook, device_guard=guard)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own decompositions, by overload (``torch._decomp.decomposition_table``)."""
    return getattr(importlib.import_module("torch._decomp"), "decomposition_table", {})


def dense_kernel(op: Any) -> Callable[..., Any] | None:
    """What a higher-order operator runs on real tensors, None where this torch has no such."""
    kernels = getattr(op, "py_kernels", {})
    return kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)


def add_kernel(op: Any, kernel: Callable[..., Any]) -> None:
    """Give a higher-order operator a kernel for tensors of this device."""
    op.py_impl(torch._C.DispatchKey.PrivateUse1)(kernel)


def no_autocast() -> Any:
    """A context in which this device's autocast changes nothing on this thread."""
    return _exclude_keys(AUTOCAST_KEYS)


@functools.cache
def _trace_state_clean() -> Callable[[], bool]:
    core = importlib.import_module("jax._src.core")
    return getattr(core, "trace_state_clean", lambda: False)


def is_outside_traces() -> bool:
    """Whether JAX is surely not tracing on this thread (False where it cannot tell)."""
    return _trace_state_clean()()


def x64_state() -> Any:
    """JAX's thread-local 64-bit flag: an object with ``swap_local(value)`` and ``set_local``."""
    config = importlib.import_module("jax._src.config")
    return config.enable_x64


def tensor_guards(tensors: list[Any]) -> Callable[..., bool]:
    """A function that tells whether tensors have the dtype, geometry and so on of these.

    In C++ where this torch has ``torch._C._dynamo.guards.TensorGuards``.
    """
    kind = getattr(
        getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None
    )
    if kind is not None and tensors:
        return kind(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    forms = list(map(_form, tensors))
    return lambda *now: all(_form(t) == form for t, form in zip(now, forms, strict=True))


def _form(tensor: Any) -> tuple:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


_function_modes = _lookup("_C._len_torch_function_stack")


def default_device() -> Any:
    """The device that factory functions use on this thread, as far as a mode sets one."""
    return torch.get_default_device() if _function_modes() else None
