"""The hot path of one operator, unrolled: calls of one or two whole tensors, or one and a number.

Nearly all calls are of these forms, and each call of a Python function that is saved counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torch_jax._private import jax_core, pytorch
from torch_jax.compiler import direct
from torch_jax.core.active import ACTIVE
from torch_jax.eager.given_numbers import number_input
from torch_jax.memory import dtypes, windows

if TYPE_CHECKING:
    from torch_jax.eager.kernel import Kernel

_create = pytorch.create_empty_tensor
_x64 = jax_core.x64_state()
_get_x64, _set_x64 = _x64.get_local, _x64.set_local


def wide(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``run`` with JAX's 64-bit types, for calls from the hot path.

    JAX reads the flag when it traces and when it calls. It is switched by hand: a context manager
    would cost more than the rest of this function.
    """
    if direct.needs_no_x64(run):
        return run

    def with_x64(*memories: Any) -> Any:
        old = _get_x64()
        try:
            _set_x64(True)
            return run(*memories)
        finally:
            _set_x64(old)

    return with_x64


def unary(kernel: Kernel, launch: Callable, call: Callable, sees_conj: bool) -> Callable:
    """Return ``call`` with the most frequent case unrolled: one whole tensor and nothing else."""
    if sees_conj:
        return call
    hot, head, slowly = kernel.hot, kernel._head, kernel._slowly

    def call_unary(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:
            return call(*args, **kwargs)
        (a,) = args
        try:
            memory = a.untyped_storage().array
        except AttributeError:  # not a tensor, or one on the CPU
            return call(a)
        shape = a.shape
        if shape != memory.shape or not a.is_contiguous() or a.storage_offset():
            return call(a)
        key = head(), shape, a.dtype
        found = hot.get(key)  # from here on like ``launch``, which costs a call of a function
        if found is None or ACTIVE.recorder is not None or ACTIVE.tracer is not None:
            return slowly(key, (memory,), args, kwargs)
        run, size, dtype, entry = found
        entry.uses += 1
        try:
            array = run(memory)
        except Exception as error:
            return kernel._failed(error, key, (memory,), args, kwargs)
        tensor = _create(size, dtype)
        tensor.untyped_storage().array = array
        return tensor

    return call_unary


def binary(kernel: Kernel, launch: Callable, call: Callable, sees_conj: bool) -> Callable:
    """Return ``call`` with frequent cases unrolled: a whole tensor, and a tensor or a number."""
    hot, head, slowly = kernel.hot, kernel._head, kernel._slowly

    def call_binary(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 2 or kwargs:
            return call(*args, **kwargs)
        a, b = args
        number = type(b)
        try:
            memory = a.untyped_storage().array
            if number is float or number is int:
                other = None
            else:
                other = b.untyped_storage().array
        except AttributeError:  # not a tensor, or one on the CPU
            return call(a, b)
        shape = a.shape
        if shape != memory.shape or not a.is_contiguous() or a.storage_offset():
            return call(a, b)
        key: tuple
        if other is None:
            key = (head(), shape, a.dtype, number)
            other = number_input(b)
        elif sees_conj and (a.is_conj() or b.is_conj() or b.is_neg()):
            return call(a, b)
        else:
            other_shape = b.shape
            key = (head(), shape, a.dtype, other_shape, b.dtype)
            if other_shape != other.shape or not b.is_contiguous() or b.storage_offset():
                parts = list(key)
                starts = place_of(b, other, parts)
                memories = (memory, other) if starts is None else (memory, other, starts)
                return launch(tuple(parts), memories, args, kwargs)
        found = hot.get(key)  # from here on like ``launch``, which costs a call of a function
        if found is None or ACTIVE.recorder is not None or ACTIVE.tracer is not None:
            return slowly(key, (memory, other), args, kwargs)
        run, size, dtype, entry = found
        entry.uses += 1
        try:
            array = run(memory, other)
        except Exception as error:
            return kernel._failed(error, key, (memory, other), args, kwargs)
        tensor = _create(size, dtype)
        tensor.untyped_storage().array = array
        return tensor

    return call_binary


def place_of(tensor: torch.Tensor, memory: Any, key: list[Any]) -> Any:
    """Add a view's place in its memory to the key; return its start, if that is an input.

    In a program that is being traced, the offset is one of its constants.
    """
    offset: Any = tensor.storage_offset()
    shape, stride = tensor.shape, tensor.stride()
    if ACTIVE.tracer is not None:
        key += stride, offset
        return None
    place = windows.place(
        memory.shape, memory.dtype, shape, stride, offset, dtypes.to_jax(tensor.dtype)
    )
    key.append(place.number)
    if place.starts is None:
        return None
    return place.given() if ACTIVE.recorder is None else place
