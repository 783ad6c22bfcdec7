"""Copies between host and device, and the value of a tensor as an array.

A copy never shares memory that PyTorch may later write: host tensors are copied once on the way
in, and once on the way out.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_jax import target
from torch_jax.budgets import BYTES_READ_ON_HOST
from torch_jax.core import absent, errors, forks, policies, tracers
from torch_jax.core.absent import Absent
from torch_jax.core.active import ACTIVE
from torch_jax.core.costs import TRAFFIC
from torch_jax.core.x64 import x64
from torch_jax.memory import dtypes, flags, geometry, parts, processes, sharding, storage, windows
from torch_jax.memory.storage import dense_strides, is_jax, is_whole, memory_of, wrap


def array_of(tensor: torch.Tensor, wanted: Any = None) -> jax.Array:
    """Return a tensor that is not on jax as a new array of its shape and dtype, maybe sharded.

    NumPy makes the copy: ``jnp.array(copy=True)`` compiles a program for each new shape. JAX may
    then share the memory of that copy, which has no other user.
    """
    policies.note_doubles((tensor.dtype,), "a copy to device 'jax'")
    errors.refuse_dims(tensor.shape)
    if absent.is_chosen():
        return Absent(tensor.shape, dtypes.to_jax(tensor.dtype), wanted)
    host = np.array(dtypes.numpy_of(tensor.cpu().contiguous()))
    TRAFFIC.to_device(host.nbytes)
    if processes.is_wide(wanted):
        return processes.laid(host, wanted)
    with x64():
        return jax.device_put(host, wanted)


def _read(memory: jax.Array, starts: Any, lens: geometry.Lens, conj: bool, neg: bool) -> jax.Array:
    value = geometry.read(memory, windows.at(lens, starts))
    value = jnp.conj(value) if conj else value
    return -value if neg else value


_plain_read = jax.jit(_read, static_argnums=(2, 3, 4))


def value_of(tensor: torch.Tensor) -> jax.Array:
    """Return the value of a tensor: an array of its shape and dtype, uncopied if whole.

    >>> value_of(torch.arange(4, device="jax").view(2, 2).t()).tolist()
    [[0, 2], [1, 3]]
    """
    memory = memory_of(tensor)
    conj, neg = tensor.is_conj(), tensor.is_neg()
    if not conj and not neg and is_whole(tensor, memory):
        return memory
    place = storage.place_of(tensor, memory)
    if type(memory) is Absent:
        return Absent(tensor.shape, dtypes.to_jax(tensor.dtype))
    try:
        with x64():
            return _plain_read(memory, place.starts, place.lens, conj, neg)
    except RuntimeError as error:
        raise errors.translate(error, f"while copying {errors.describe(tensor)}") from error


def as_array(tensor: torch.Tensor) -> jax.Array:
    """Return the value of a tensor on any device; one on the CPU is copied."""
    return value_of(tensor) if is_jax(tensor) else array_of(tensor.detach())


def on_host(array: jax.Array) -> np.ndarray:
    """Return the array's value as NumPy sees it, read-only.

    An error of the computation is raised here: the value is awaited first, since XLA ends the
    process where NumPy reads an array whose computation has failed.
    """
    if tracers.is_traced(array):
        raise tracers.needs_value_on_host(array)
    if ACTIVE.observer is not None:
        ACTIVE.observer.looks()
    if ACTIVE.recorder is not None:
        ACTIVE.recorder.look()
    if type(array) is Absent:
        return absent.elements(array)
    forks.refuse()
    start = time.perf_counter()
    try:
        if sharding.Use.begun:
            array = processes.whole(array)
        if isinstance(array, jax.Array) and not target.on_cpu():
            array.copy_to_host_async()  # it takes longer if it is asked for when the value is there
        flags.ask()
        host = np.asarray(jax.block_until_ready(array))
    except RuntimeError as error:
        raise errors.translate(error, "while waiting for a value") from error
    TRAFFIC.to_host(host.nbytes, time.perf_counter() - start)
    flags.raise_failed()
    return host


def require(flag: jax.Array, message: str, kind: type[Exception]) -> None:
    """Raise ``kind(message)`` where the flag of a check is false, at once or at the next wait."""
    is_far = isinstance(flag, jax.Array | Absent)
    if is_far and not policies.waits_for_checks(kind):
        flags.come_later(flag, message, kind)
    elif not on_host(flag):
        raise kind(message)


def host_copy(array: jax.Array) -> torch.Tensor:
    """Return an array as a CPU tensor with memory of its own; waits for the value."""
    if sharding.Use.begun and (host := parts.read(wrap(array), array, _borrowed)) is not None:
        return host  # JAX would keep another copy of the whole
    return _borrowed(array).view(array.shape).clone()


def _borrowed(array: jax.Array) -> torch.Tensor:
    """Return the elements of an array as a flat CPU tensor, not to be written; waits for them."""
    return borrowed(np.ascontiguousarray(on_host(array)).reshape(-1), dtypes.to_torch(array.dtype))


def borrowed(data: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Return JAX's read-only host array as a CPU tensor, which must not be written.

    NumPy shows it to PyTorch as writable, so that PyTorch does not warn.

    >>> borrowed(np.arange(3), torch.int64)
    tensor([0, 1, 2])
    """
    if data.dtype.isbuiltin != 1:
        data = data.view(f"u{data.dtype.itemsize}")
    address, _ = data.__array_interface__["data"]
    interface = data.__array_interface__ | {"data": (address, False)}
    writable = SimpleNamespace(held=data, __array_interface__=interface)
    found = torch.from_numpy(np.asarray(writable))
    return found if found.dtype is dtype else found.view(dtype)


def own_part(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a CPU copy of a tensor in parts that this process has, without the other processes."""
    return parts.read(tensor, memory_of(tensor), _borrowed, is_own=True)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU copy of a jax tensor, its strides kept as by ``clone``.

    >>> to_host(torch.ones(2, device="jax") + 1)
    tensor([2., 2.])
    """
    memory = memory_of(tensor)
    if not tensor.numel():
        on_host(memory)  # an error of the computation
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    if type(memory) is Absent:
        return _borrowed(value_of(tensor)).view(tensor.shape)
    if sharding.Use.begun and (host := parts.read(tensor, memory, _borrowed)) is not None:
        return host
    if _is_read_on_host(tensor, memory):
        place = tensor.shape, tensor.stride(), int(tensor.storage_offset())
        return _borrowed(memory).as_strided(*place).clone()
    order = geometry.memory_order(tensor.shape, dense_strides(tensor.shape, tensor.stride()))
    if order is None or order == tuple(range(tensor.dim())):
        return host_copy(value_of(tensor))
    return to_host(tensor.permute(order)).permute(*np.argsort(order).tolist())


def _is_read_on_host(tensor: torch.Tensor, memory: jax.Array) -> bool:
    """Return whether a view is cut out of its memory on the host, to compile nothing.

    A loop over ``x[i].item()`` would else compile a program for each ``i``. On an accelerator all
    of the memory comes over, so it must be small, or the view the most of it.
    """
    plain = memory.dtype == dtypes.to_jax(tensor.dtype)
    if not plain or tensor.is_conj() or tensor.is_neg():
        return False
    is_small = memory.nbytes <= BYTES_READ_ON_HOST
    return target.on_cpu() or is_small or 2 * tensor.numel() >= memory.size


def to_device(tensor: torch.Tensor, wanted: Any = None) -> torch.Tensor:
    """Return a copy of a CPU tensor on device ``jax``, its strides kept as by ``clone``.

    ``wanted`` is its sharding, if it is to lie on a mesh.

    >>> to_device(torch.ones(2)).device
    device(type='jax', index=0)
    """
    stride = dense_strides(tensor.shape, tensor.stride())
    order = geometry.memory_order(tensor.shape, stride)
    if order is None or geometry.row_major(tensor.shape) == stride:
        return wrap(array_of(tensor, wanted), tensor.dtype)
    wanted = wanted and sharding.permuted(wanted, order)
    return storage.restride(wrap(array_of(tensor.permute(order), wanted)), tensor.shape, stride, 0)
