"""Answers of tensors to programs for CUDA: ``is_cuda``, ``type()``, ``FloatTensor``.

``x.device`` stays ``jax:0``: libraries choose kernels by it, and this device has none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from torch_jax.device.tensor_types import Kind
from torch_jax.environment import cuda_answers
from torch_jax.environment.callables import wrap
from torch_jax.environment.regions import JAX, redirects_cuda, where_cuda

_OURS, _CUDAS = f"torch.{JAX}.", "torch.cuda."


def install() -> None:
    """Replace the answers of tensors and modules, and the old types of ``torch.cuda``."""
    torch.Tensor.is_cuda = property(_is_cuda, doc=torch.Tensor.is_cuda.__doc__)  # type: ignore
    wrap(torch.Tensor, "type", _type)
    wrap(torch.nn.Module, "type", _taking_types)
    wrap(torch, "set_default_tensor_type", _default_type)
    for module in (torch.cuda, torch.cuda.sparse):
        for name, value in list(vars(module).items()):
            if type(value).__name__ == "tensortype":
                is_sparse = module is torch.cuda.sparse
                own = {"original": value, "dtype": value.dtype, "is_sparse": is_sparse}
                # C++ takes the name of the type for that of the kind of tensor
                setattr(module, name, _Kind(f"{module.__name__}.{name}", (), own))


_plainly: Any = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]


def _is_cuda(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on the device that the caller's program calls ``"cuda"``.

    PyTorch's own code asks on behalf of CUDA's kernels, and gets ``False``.
    """
    if _plainly(tensor):
        return True
    if tensor.device.type != JAX or not redirects_cuda():
        return False
    return not sys._getframe(1).f_globals.get("__name__", "").startswith(("torch.", "torch_jax."))


class _Kind(Kind):
    """The type of ``torch.cuda.FloatTensor``: its name, and the original where CUDA means CUDA."""

    original: Any
    is_sparse: bool

    def __instancecheck__(cls, instance: Any) -> bool:
        if not redirects_cuda():
            return isinstance(instance, cls.original)
        return super().__instancecheck__(instance) and instance.is_sparse == cls.is_sparse

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return a tensor of sizes, or of data."""
        if not redirects_cuda():
            return cls.original(*args, **kwargs)
        if cls.is_sparse:
            raise cuda_answers.refusal("sparse")
        return super().__call__(*args, **kwargs)


def _ours(kind: Any) -> Any:
    """Return ``"torch.jax.FloatTensor"`` for the type of ``torch.cuda``, or its name."""
    name = kind.__name__ if isinstance(kind, _Kind) else kind
    if isinstance(name, str) and name.startswith(_CUDAS):
        return _OURS + name.removeprefix(_CUDAS)
    return kind


@where_cuda
def _type(original: Any, self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Return ``x.type()``, which names the device as the program does, or ``x.type(kind)``."""
    found = original(self, _ours(dtype), *args, **kwargs)
    is_name = isinstance(found, str) and found.startswith(_OURS)
    return _CUDAS + found.removeprefix(_OURS) if is_name else found


@where_cuda
def _taking_types(original: Any, self: Any, dst_type: Any) -> Any:
    return original(self, _ours(dst_type))


def _default_type(original: Any) -> Callable[..., Any]:
    """Let ``torch.set_default_tensor_type("torch.cuda.FloatTensor")`` set a dtype and a device."""
    chosen: list[str] = []  # whether the device was set here, to be taken back here

    def set_default_tensor_type(t: Any) -> None:
        name = _ours(t)
        if redirects_cuda() and isinstance(name, str) and name.startswith(_OURS):
            torch.set_default_dtype(getattr(torch, name.removeprefix(_OURS)).dtype)
            torch.set_default_device(JAX)
            chosen[:] = [JAX]
            return
        if chosen:
            torch.set_default_device(None)
            chosen.clear()
        original(t)

    return set_default_tensor_type
