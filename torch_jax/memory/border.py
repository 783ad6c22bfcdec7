"""Single values at the border of JAX and PyTorch: a tensor as an array, an array as a tensor.

Memory crosses uncopied, and without history. A value that cannot cross raises an error that names a
remedy, of PyTorch's type for it: ``Tensor.numpy`` raises ``TypeError`` for a tensor on another
device, ``RuntimeError`` for one that requires grad.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_jax._private import jax_core, pytorch
from torch_jax.core import active, crossed, errors, tracers
from torch_jax.core.costs import TRAFFIC
from torch_jax.core.x64 import x64
from torch_jax.memory import dtypes, sharding, storage, transfer


def array_of(value: Any) -> Any:
    """Return a tensor as an array, other values unchanged. See ``torch_jax.to_jax``."""
    if not isinstance(value, torch.Tensor):
        return value
    _refuse_strange(value)
    if value.requires_grad:
        raise RuntimeError(
            f"can't give a tensor that requires grad, {errors.describe(value)}, to JAX: gradients "
            "would stop there. Use tensor.detach()"
        )
    _refuse_in_trace("torch_jax.to_jax gives an array to code")
    array = transfer.value_of(value)
    if tracers.is_traced(array):
        _refuse_ended(array)
    else:
        if array.is_deleted():
            raise _deleted(f"the memory of a tensor, {errors.describe(value)},")
        crossed.mark(array)
    return array


def users_array(tensor: torch.Tensor) -> jax.Array:
    """Return the value of any tensor, as an export's weight, as an array that is never donated."""
    array = transfer.as_array(tensor)
    crossed.mark(array)
    return array


def _refuse_strange(tensor: torch.Tensor) -> None:
    """Raise for a tensor that has no memory of one array on the device."""
    shown = f"can't convert a tensor, {errors.describe(tensor)}, to a jax.Array"
    if tensor.layout != torch.strided or tensor.is_nested:
        instead = "values()" if tensor.is_nested else "to_dense()"
        raise TypeError(f"{shown}: its layout is {tensor.layout}. Use tensor.{instead}")
    if tensor.is_meta:
        raise TypeError(f"{shown}: a tensor on device meta has no elements")
    if tensor.device.type != pytorch.DEVICE_TYPE:
        raise TypeError(
            f"{shown} without a copy: it is on {tensor.device}. Use tensor.to('jax') first"
        )
    if pytorch.is_wrapped(tensor):
        raise TypeError(
            f"{shown}: it is one of torch.func's, as vmap and grad make them. Call to_jax outside"
        )
    if hasattr(tensor, "to_local"):
        raise TypeError(f"{shown}: it is a DTensor. Use tensor.to_local() or full_tensor()")
    if storage.memory_if_any(tensor) is None:
        raise TypeError(f"{shown}: {type(tensor).__name__} has no memory of its own")


def tensor_of(value: Any) -> Any:
    """Return an array as a tensor, other values unchanged. See ``torch_jax.from_jax``."""
    if isinstance(value, jax.Array):
        return _of_array(value)
    if isinstance(value, np.ndarray | np.generic):
        return _of_numpy(value)
    return value


def _of_array(array: jax.Array) -> torch.Tensor:
    dtype = _dtype_of(array)
    if tracers.is_traced(array):
        _refuse_ended(array)
        return storage.wrap(array, dtype)
    _refuse_in_trace("torch_jax.from_jax takes an array from code")
    if array.is_deleted():
        raise _deleted(f"the array {tracers.shown(array)}")
    _refuse_elsewhere(array)
    sharding.meet(array)
    if array.weak_type:
        array = jax_core.strong(array)
    array = jax_core.row_major(array)  # operators take this layout; hot ones do not check
    crossed.mark(array)
    return storage.wrap(array, dtype)


def _of_numpy(value: Any) -> torch.Tensor:
    """Return a copy, since NumPy's arrays are written."""
    dtype = _dtype_of(value)
    _refuse_in_trace("torch_jax.from_jax takes an array from code")
    host = np.array(value, value.dtype.newbyteorder("="))
    TRAFFIC.to_device(host.nbytes)
    with x64():
        return storage.wrap(jax.device_put(host), dtype)


def _dtype_of(array: Any) -> torch.dtype:
    try:
        return dtypes.to_torch(array.dtype.newbyteorder("="))
    except (TypeError, AttributeError):  # the dtype of keys has no byte order
        shown = f"can't convert the array {tracers.shown(array)} to a tensor"
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            raise TypeError(f"{shown}: it holds keys. Use jax.random.key_data(array)") from None
        raise TypeError(
            f"{shown}: PyTorch has no dtype {array.dtype}. Use array.astype(...)"
        ) from None


def _deleted(what: str) -> Exception:
    return RuntimeError(f"{what} {errors.DELETED} ({tracers.user_line()})")


def _refuse_ended(array: Any) -> None:
    """Raise for a tracer of a trace that has ended, as far as that shows before its use."""
    if tracers.is_traced_elsewhere((array,)) or not jax_core.is_valid(array):
        raise tracers.outlived(f"a {tracers.shown(array)} array")


def _refuse_elsewhere(array: jax.Array) -> None:
    """Raise for an array that lies where no operator of the device computes."""
    (home, *_) = jax.local_devices()
    device: Any = next(iter(array.sharding.device_set))
    if device.platform != home.platform:
        raise RuntimeError(
            f"the array {tracers.shown(array)} lies on {device}, and device 'jax' is "
            f"{home.platform}: use jax.device_put(array, jax.devices()[0])"
        )
    kind = array.sharding.memory_kind
    if kind not in (None, device.default_memory().kind):
        raise RuntimeError(
            f"the array {tracers.shown(array)} lies in memory of kind {kind!r}, where device 'jax' "
            "does not compute: use jax.device_put(array, array.sharding.with_memory_kind("
            f"{device.default_memory().kind!r}))"
        )


def _refuse_in_trace(what: str) -> None:
    """Raise in a call whose Python later calls of ``torch_jax.jit(pure=True)`` skip."""
    if active.ACTIVE.observer is not None:
        raise tracers.NotTraceableError(
            f"{what} that runs once ({tracers.user_line()}). Drop pure=True; or, give JAX's "
            "function to torch_jax, which makes an operator of it"
        )
