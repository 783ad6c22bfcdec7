"""Errors that torch_jax raises beyond PyTorch's own, and JAX's errors in PyTorch's terms."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from torch_jax.budgets import ROWS_OF_AN_ERROR
from torch_jax.core import ordinals

SHARED = (
    "unsupported operation: more than one element of the written-to tensor refers to a single "
    "memory location. Please clone() the tensor before performing the operation."
)
"""PyTorch's sentence for writes to tensors whose elements share memory."""


class OperatorNotFound(NotImplementedError):
    """An operator is served by no rung of the lookup ladder; see :func:`torch_jax.register_op`."""


def describe(value: Any) -> str:
    """Return an argument as an error shows it: dtype and shape for tensors, else ``repr``.

    >>> describe([torch.ones(2, 3), 1.5])
    '[float32[2,3], 1.5]'
    >>> describe(list(range(400)))
    '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... 400 in all]'
    """
    if isinstance(value, torch.Tensor):
        strided_nested = value.is_nested and value.layout == torch.strided  # has no one shape
        shape = "..." if strided_nested else ",".join(map(str, value.shape))
        device = "" if value.device.type in ("cpu", "meta") else f"@{value.device}"
        return f"{str(value.dtype).removeprefix('torch.')}[{shape}]{device}"
    if isinstance(value, list | tuple):
        shown = [describe(v) for v in value[:ROWS_OF_AN_ERROR]]
        left_out = [f"... {len(value)} in all"] if len(value) > ROWS_OF_AN_ERROR else []
        return f"[{', '.join(shown + left_out)}]"
    return repr(value)


def describe_call(op: Any, args: tuple, kwargs: dict[str, Any]) -> str:
    """Return a call as text: ``aten.add.Tensor(float32[2,3]@jax:0, 1.5)``."""
    shown = [describe(a) for a in args] + [f"{k}={describe(v)}" for k, v in kwargs.items()]
    return f"{op}({', '.join(shown)})"


def not_found(
    op: Any,
    args: tuple,
    kwargs: dict[str, Any],
    instead: str = "allow the CPU fallback with TORCH_JAX_CPU_FALLBACK=warn",
) -> OperatorNotFound:
    """Return the error for an operator that nothing serves, with the ways to mend it."""
    name = str(op).removeprefix("aten.")
    return OperatorNotFound(
        f"{describe_call(op, args, kwargs)} has no lowering to JAX on device 'jax'. "
        f"Register one with @torch_jax.register_op({name!r}), a function of jax.Arrays, or "
        f"{instead}."
    )


def same_device(op: Any, tensor: torch.Tensor) -> RuntimeError:
    """Return PyTorch's error for operands on two devices."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"jax:0 and {tensor.device}! (when checking an argument of {op}, a "
        f"{describe(tensor)}; move it with .to('jax'))"
    )


def is_of_two_devices(error: Exception) -> bool:
    """Return whether an error, ours or PyTorch's, says that operands are on two devices."""
    return "to be on the same device" in str(error)


def refuse_sparse(tensor: torch.Tensor) -> None:
    """Raise for a sparse tensor that a compiled function takes, makes or gives."""
    if tensor.layout == torch.sparse_coo:
        raise NotImplementedError(
            f"{describe(tensor)}: a compiled function has no sparse tensors. Make and use them "
            "eagerly, or give nn.Embedding and nn.EmbeddingBag sparse=False"
        )


def check_ordinal(device: torch.device) -> None:
    """Raise for a device number that no device has (:mod:`.ordinals`)."""
    if device.type == "jax" and device.index not in (None, 0):
        ordinals.check(device.index)


def from_jax(error: Exception, op: Any, args: tuple, kwargs: dict[str, Any]) -> Exception:
    """Return JAX's error as PyTorch's for the same cause, with the call in its message."""
    return translate(error, f"in {describe_call(op, args, kwargs)}")


DELETED = (
    "was deleted, or donated to a program of JAX's, by code that shares it: torch_jax.to_jax and "
    "from_jax copy nothing. Give such code a copy: to_jax(x).copy()"
)
ENDED = (
    "was made while a function was traced, which has left it behind: it has no elements. Have the "
    "function return it, in place of keeping it in an attribute, a list or a global"
)
APART = (
    "Expected all tensors to be on the same device, but arrays of JAX's lie on several: move them, "
    "jax.device_put(array, jax.devices()[0]), before torch_jax.from_jax"
)


# Returns the text that errors of no memory add: the arrays there are. Set at first use.
in_memory: Callable[[], str] = lambda: ""  # noqa: E731


def is_deleted(error: Exception) -> bool:
    """Return whether JAX's error says that an array is gone."""
    return "has been deleted" in str(error) or "deleted or donated" in str(error)


# XLA's, and PyTorch's where its kernels run on the CPU
_OF_NO_MEMORY = "RESOURCE_EXHAUSTED", "Out of memory", "can't allocate memory"


def translate(error: Exception, where: str) -> Exception:
    """Return JAX's error as PyTorch's type for it; ``where`` ends the message."""
    if type(error).__module__.partition(".")[0] == "torch":  # of another process's end
        return error
    text = str(error)
    if is_deleted(error):
        text = f"the memory of a tensor {DELETED}. {text}"
    if type(error).__name__ == "UnexpectedTracerError":  # `import torch` loads this file, not jax
        text = f"a tensor or an array {ENDED}"
    if "incompatible devices" in text:
        text = f"{APART}. {text}"
    # an array computed from one that found no room fails as INTERNAL, with the text of both
    if any(words in text for words in _OF_NO_MEMORY):
        return torch.OutOfMemoryError(f"device 'jax' is out of memory {where}: {text}{in_memory()}")
    if isinstance(error, np.linalg.LinAlgError):
        return of_torch(type(error))(text)
    kind = type(error) if isinstance(error, IndexError | NotImplementedError) else RuntimeError
    if "is out of bounds for array of dimension" in text:  # an axis, for which JAX has ValueError
        kind = IndexError
    return kind(f"{text} ({where})")


def of_torch(kind: type[Exception]) -> type[Exception]:
    """Return PyTorch's type of exception for NumPy's of matrices that have no factorization."""
    return torch.linalg.LinAlgError if issubclass(kind, np.linalg.LinAlgError) else kind


def refuse_cast(result: torch.dtype, target: torch.dtype) -> None:
    """Raise PyTorch's error where a result may not be stored in an output of another dtype."""
    if not torch.can_cast(result, target):
        new, out = (torch.empty(0, dtype=dtype, device="cpu") for dtype in (result, target))
        torch.add(new, new, out=out)


def require(library: str, message: str) -> Any:
    """Return a library; raise if it is missing, with a message that says how to install it."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(message) from error


def refuse_dims(size: Sequence[int]) -> None:
    """Raise where a tensor would have more dimensions than an array can have."""
    if len(size) > 64:
        raise RuntimeError(
            f"device 'jax' has tensors of up to 64 dimensions, not {len(size)}: join some of them"
        )
