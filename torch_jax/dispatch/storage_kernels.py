"""Kernels that are about storage and geometry, no arithmetic: factories, copies, views, resizing.

PyTorch's dispatcher calls them with tensors. All other operators come from the table (``ops/``),
whose kernels take arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_jax._private import jax_core, pytorch
from torch_jax.budgets import BYTES_OF_ZEROS_FROM_HOST
from torch_jax.core import errors, policies
from torch_jax.core.active import ACTIVE
from torch_jax.core.costs import TRAFFIC
from torch_jax.core.node import Node
from torch_jax.core.x64 import x64
from torch_jax.eager import refusals, variants
from torch_jax.memory import dtypes, geometry, parts, sharding, shared, storage, transfer
from torch_jax.memory.storage import is_jax, is_jax_storage, wrap

_CPU = torch.device("cpu")
_cpu_empty = torch.ops.aten.empty_strided.default._op
_cpu_copy = torch.ops.aten._to_copy.default._op
_cpu_write = torch.ops.aten.copy_.default._op

# Operators that only copy elements within the device, as PyTorch's own kernels do.
COPIES = frozenset(("clone", "_local_scalar_dense"))


KERNELS: dict[str, Callable[..., Any]] = {}
kernel = variants.entering(KERNELS)


def redispatch_to_meta(op: Any) -> Callable[..., Any]:
    """Return a view operator: PyTorch's own meta kernel makes a true alias of a jax tensor."""
    return pytorch.redispatched(op, pytorch.META_KEYS)


# Of the CPU, but they read no memory, and call other operators.
for _op in (
    torch.ops.aten.is_set_to.default,
    torch.ops.aten.set_.source_Tensor,
    torch.ops.aten._to_sparse.default,
    torch.ops.aten._to_sparse.sparse_dim,
):
    kernel(variants.table_name(_op))(pytorch.redispatched(_op, pytorch.CPU_KEYS))


def _refuse_layout(layout: Any) -> None:
    if layout not in (None, torch.strided):
        raise RuntimeError(f"device 'jax' has strided tensors only, not layout {layout}")


def _strides(size, memory_format: Any) -> tuple[int, ...]:
    """Return strides of a new tensor in a memory format (None: contiguous)."""
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return geometry.row_major(size)
    return torch.empty(size, device="meta", memory_format=memory_format).stride()


@kernel("empty.memory_format")
def empty(size, *, memory_format=None, **options: Any) -> torch.Tensor:
    """Return a new tensor; its elements are zero, or as deterministic algorithms ask."""
    if any(n < 0 for n in size):
        raise RuntimeError(
            f"Trying to create tensor with negative dimension {min(size)}: {list(size)}"
        )
    return empty_strided(size, _strides(size, memory_format), **options)


@kernel("empty_strided")
def empty_strided(size, stride, *, dtype=None, layout=None, device=None, **_options: Any) -> Any:
    """Return a new tensor with these strides; its elements are as in :func:`empty`."""
    _refuse_layout(layout)
    if device is not None:
        errors.check_ordinal(device)
    new = _new_zeros(size, stride, dtype or torch.get_default_dtype())
    return new.fill_(_garbage(new.dtype)) if _fills() else new


def _fills() -> bool:
    """Return whether memory that was never written is filled, so that its use is found."""
    return torch.are_deterministic_algorithms_enabled() and pytorch.fills_new_memory()


def _garbage(dtype: torch.dtype) -> Any:
    """Return PyTorch's filling of such memory: NaN, True, or the largest integer."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def _new_zeros(size, stride, dtype: torch.dtype) -> torch.Tensor:
    if shared.holds_new():
        return shared.taken(_cpu_empty(size, stride, dtype=dtype, device=_CPU).zero_())
    if (order := geometry.memory_order(size, stride)) is None:
        return storage.restride(_zeros((storage.span(size, stride, 0),), dtype), size, stride, 0)
    tensor = _zeros(tuple(size[i] for i in order), dtype)
    if geometry.row_major(size) == tuple(stride):
        return tensor
    return storage.restride(tensor, size, stride, 0)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    policies.note_doubles((dtype,), "a new tensor on device 'jax'")
    if ACTIVE.recorder is not None and ACTIVE.tracer is None:  # a part of the graph costs no copy
        return torch.ops.aten.zeros.default(shape, dtype=dtype, device=pytorch.DEVICE_TYPE)
    errors.refuse_dims(shape)
    twin = dtypes.to_jax(dtype)
    try:
        with x64():
            is_small = math.prod(shape) * twin.itemsize <= BYTES_OF_ZEROS_FROM_HOST
            # in a trace they would be constants
            if is_small and ACTIVE.tracer is None and jax_core.is_outside_traces():
                return wrap(jax.device_put(np.zeros(shape, twin)), dtype)
            return wrap(jnp.zeros(shape, twin), dtype)
    except RuntimeError as error:
        raise errors.translate(error, f"while making {dtype}{list(shape)}") from error


@kernel("_efficientzerotensor")
def zero_tensor(size, *, dtype=None, layout=None, **_options: Any) -> torch.Tensor:
    """Return zeros, which autograd's formulas ask for without memory where a device can do so."""
    _refuse_layout(layout)
    return _new_zeros(size, geometry.row_major(size), dtype or torch.get_default_dtype())


@kernel("_new_zeros_with_same_feature_meta")
def zeros_with_same_memory(self, other, self_num_batch_dims=0) -> torch.Tensor:
    """Return zeros of the geometry of ``other`` and its storage, whose size in C++ is zero here."""
    batch = tuple(self.shape[:self_num_batch_dims])
    count = _elements_in_storage(other)
    new = _new_zeros((math.prod(batch) * count,), (1,), other.dtype)
    stride = (*(step * count for step in geometry.row_major(batch)), *other.stride())
    return storage.restride(new, (*batch, *other.shape), stride, other.storage_offset())


@kernel("_has_same_storage_numel")
def has_same_storage_numel(self, other) -> bool:
    """Return whether two storages hold equally many elements."""
    return _elements_in_storage(self) == _elements_in_storage(other)


def _elements_in_storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.dtype.itemsize


@kernel("_to_copy")
def to_copy(self, *, dtype=None, layout=None, device=None, memory_format=None, **_options) -> Any:
    """Copy to another device or dtype; dense strides are kept unless ``memory_format`` is given."""
    _refuse_layout(layout)
    is_kept = memory_format in (None, torch.preserve_format)
    if not is_kept and self.stride() != _strides(self.shape, memory_format):
        self = self.clone(memory_format=memory_format)
    device = self.device if device is None else torch.device(device)
    errors.check_ordinal(device)
    if device.type in (pytorch.DEVICE_TYPE, "cpu") and shared.is_here():
        try:
            return _copied(self, dtype, device)
        except shared.Elsewhere:
            pass
    if not is_jax(self):  # cast where the data is, unless the cast would widen the transfer
        if dtype is not None and dtype.itemsize <= self.dtype.itemsize:
            self, dtype = self.to(dtype), None
        self = transfer.to_device(self)
        self = self if dtype in (None, self.dtype) else _cast(self, dtype)
        if ACTIVE.observer is not None:  # of torch.tensor, which goes past dispatch modes
            ACTIVE.observer.storages.makes(self)
        return self
    if device.type != pytorch.DEVICE_TYPE:
        self = _cast(self, dtype) if dtype not in (None, self.dtype) else self
        host = transfer.to_host(self)
        return host if device.type == "cpu" else host.to(device)
    return _cast(self, dtype or self.dtype)


def _copied(self: torch.Tensor, dtype: Any, device: torch.device) -> torch.Tensor:
    """Run :func:`to_copy` by PyTorch's kernel."""
    is_here = is_jax(self)
    new = _cpu_copy(shared.seen(self) if is_here else self, dtype=dtype)
    if device.type == pytorch.DEVICE_TYPE:
        if not is_here:
            TRAFFIC.to_device(new.nbytes)
        return shared.taken(new)
    TRAFFIC.to_host(new.nbytes, 0.0)
    return new.resolve_conj().resolve_neg()


def _cast(self: torch.Tensor, dtype: torch.dtype, stride: Any = None) -> torch.Tensor:
    """Return a new tensor with these or its own strides; it shares an array that stays the same."""
    if stride is None:
        stride = self.stride()
        if not self.is_contiguous():
            stride = storage.dense_strides(self.shape, stride)
    order = geometry.memory_order(self.shape, stride)
    if order is None or geometry.row_major(self.shape) == tuple(stride):
        return _copy(self, dtype)
    return storage.restride(wrap(_value(self.permute(order), dtype)), self.shape, stride, 0)


def _copy(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a contiguous copy in a dtype, of the same array where nothing changes."""
    if tensor.is_conj() or tensor.is_neg():
        return _resolved(tensor).to(dtype)
    if dtype == tensor.dtype and storage.is_whole(tensor, memory := storage.held_by(tensor)):
        same: Any = memory if type(memory) is Node else storage.memory_of(tensor)
        return wrap(same, dtype)
    policies.note_doubles((dtype,), "a cast on device 'jax'")
    return torch.ops.torch_jax.copy(tensor, dtype)


def _value(tensor: torch.Tensor, dtype: torch.dtype) -> Any:
    """Return the value of a tensor in a dtype as an array of its shape: its own if that fits."""
    memory = storage.held_by(tensor)
    if dtype == tensor.dtype and storage.is_whole(tensor, memory):
        if not (tensor.is_conj() or tensor.is_neg()):
            return memory if type(memory) is Node else storage.memory_of(tensor)
    copy = _copy(tensor, dtype)
    found = storage.held_by(copy)
    return found if storage.is_whole(copy, found) else transfer.value_of(copy)


def _resolved(lazy: torch.Tensor) -> torch.Tensor:
    """Return a conjugated or negated view as a new contiguous tensor, by recordable operators."""
    conj, neg = lazy.is_conj(), lazy.is_neg()
    plain = torch._neg_view(lazy) if neg else lazy
    plain = torch.ops.torch_jax.copy(plain.conj() if conj else plain, lazy.dtype)
    plain = plain.conj_physical() if conj else plain
    return -plain if neg else plain


@kernel("clone", "_lazy_clone")
def clone(self, memory_format=None) -> torch.Tensor:
    """Return a copy, in the memory format asked for; it is made when either is written."""
    if memory_format in (None, torch.preserve_format):
        return _cast(self, self.dtype)
    return _cast(self, self.dtype, _strides(self.shape, memory_format))


@kernel("copy_")
def copy_(self, source, non_blocking=False) -> torch.Tensor:
    """Write ``source``, broadcast and cast, into ``self``; either may be on the CPU."""
    if not isinstance(source, torch.Tensor):
        source = torch.scalar_tensor(source, dtype=self.dtype, device=self.device)
    if shared.is_here() and not _takes_array(self, source):
        try:
            return _written(self, source)
        except shared.Elsewhere:
            pass
    if not is_jax(self):
        return self.copy_(transfer.to_host(source))
    if self.numel() == 0:
        torch.broadcast_to(source, self.size())  # uninitialized parameters have no shape
        return self
    if not is_jax(source):
        if sharding.Use.begun and parts.write(self, source):
            return self
        source = transfer.to_device(source)
    if source.untyped_storage() is self.untyped_storage():
        refusals.check_memory(torch.ops.aten.copy_.default, (self, source), {})
    if source.shape == self.shape and not (self.is_conj() or self.is_neg()):
        memory, target = storage.held_by(self), self.untyped_storage()
        if storage.is_whole(self, memory) and source.dtype == self.dtype:
            value = _value(source, self.dtype)
            if not storage.put_back((target,), (memory,), (value,)):
                storage.replace(target, value)
            return self
    plain = self  # with no bits: PyTorch's kernel would heed them once more
    if self.is_conj():
        plain, source = plain.conj(), source.conj()
    if self.is_neg():
        plain, source = torch._neg_view(plain), -source
    torch.ops.torch_jax.write_(plain, source.resolve_conj().resolve_neg())
    return self


def _takes_array(self: torch.Tensor, source: torch.Tensor) -> bool:
    """Return whether a whole tensor takes the array of another, which is never written."""
    array = source.untyped_storage().__dict__.get("array")
    return (
        array is not None
        and self.dtype == source.dtype
        and self.size() == source.size()
        and self.is_contiguous()
        and is_jax(self)
        and self.nbytes == storage.nbytes_of(self.untyped_storage())
        and storage.is_whole(source, array)
    )


def _written(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Run :func:`copy_` by PyTorch's kernel."""

    def read() -> list[torch.Tensor]:
        return [shared.seen(one) if is_jax(one) else one for one in (self, source)]

    if is_jax(self):
        shared.written([self], read, lambda pair: _cpu_write(*pair))
    else:
        _cpu_write(*read())
    if not is_jax(source):
        TRAFFIC.to_device(source.nbytes)
    elif not is_jax(self):
        TRAFFIC.to_host(self.nbytes, 0.0)
    return self


@kernel("_copy_from")
def copy_from(self, dst, non_blocking=False) -> torch.Tensor:
    """Do ``dst.copy_(self)``."""
    return copy_(dst, self, non_blocking)


@kernel("_copy_from_and_resize")
def copy_from_and_resize(self, dst) -> torch.Tensor:
    """Do ``dst.resize_as_(self).copy_(self)``."""
    return copy_(dst.resize_(self.shape), self)


@kernel("_local_scalar_dense")
def local_scalar_dense(self) -> Any:
    """Return the value as a Python number (``Tensor.item``)."""
    return transfer.to_host(self).item()


@kernel("as_strided")
def as_strided(self, size, stride, storage_offset=None) -> torch.Tensor:
    """Return a view by sizes, strides and offset, within the bounds of the storage."""
    offset = self.storage_offset() if storage_offset is None else storage_offset
    last = offset  # every view comes by here, so the bounds are checked in one quick pass
    for n, step in zip(size, stride, strict=False):
        last += (n - 1) * step
    nbytes = storage.nbytes_of(self.untyped_storage())
    if (last + 1) * self.dtype.itemsize > nbytes and 0 not in size:
        needed = storage.span(size, stride, offset) * self.dtype.itemsize
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and "
            f"itemsize {self.dtype.itemsize} requiring a storage size of {needed} are out of "
            f"bounds for storage of size {nbytes}"
        )
    return storage.restride(self, size, stride, offset)


def _scatter(name: str, view: Callable[..., torch.Tensor]) -> None:
    """Enter the operator that returns a copy with another tensor written into a view of it.

    The copy has the storage's layout, as PyTorch's functions on the CPU give it. So the place of
    the view is no part of a program, as in code that writes into the view itself.
    """

    @kernel(name)
    def scatter(self, src, *args, **kwargs) -> torch.Tensor:
        if geometry.repeats(self.shape, self.stride()):
            out = self.clone()
        else:  # of the same geometry, over a copy of the storage
            whole = storage.wrap(storage.held_by(self)).view(self.dtype)
            out = storage.restride(whole, self.shape, self.stride(), self.storage_offset())
        part = view(out, *args, **kwargs)
        if part.shape != src.shape:
            sizes = f"src of {list(src.shape)} for a view of {list(part.shape)}"
            raise RuntimeError(f"{name} expects src of the size of the view, and got {sizes}")
        part.copy_(src)
        return out


_scatter("as_strided_scatter", as_strided)
_scatter("select_scatter", torch.ops.aten.select.int)
_scatter("slice_scatter", torch.ops.aten.slice.Tensor)
_scatter("diagonal_scatter", torch.ops.aten.diagonal.default)


@kernel("as_strided_")
def as_strided_(self, size, stride, storage_offset=None) -> torch.Tensor:
    """Change the geometry of ``self`` in place (``squeeze_``, ``t_`` … come this way)."""
    if not is_jax(self):  # a wrapper of functionalization's, which has a geometry and no memory
        geometrical = redispatch_to_meta(torch.ops.aten.as_strided_.default)
        return geometrical(self, size, stride, storage_offset)
    view = as_strided(self, size, stride, storage_offset)
    return set_storage(self, self.untyped_storage(), view.storage_offset(), size, stride)


@kernel("set_.source_Storage_storage_offset")
def set_storage(self, source, storage_offset, size, stride=()) -> torch.Tensor:
    """Make ``self`` see ``source`` with a geometry, growing the storage where it is too short."""
    if not is_jax_storage(source):
        raise RuntimeError(
            f"Attempted to set the storage of a tensor on device jax:0 to a storage on different "
            f"device {source.device}. This is no longer allowed; the devices must match."
        )
    stride = tuple(stride) or geometry.row_major(size)
    needed = storage.span(size, stride, storage_offset) * self.dtype.itemsize
    if needed > source.nbytes():
        storage.resize(source, needed)
    _type_bytes(source, self.dtype)
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        pytorch.META_KEYS, self, source, storage_offset, tuple(size), stride
    )
    return self


def _type_bytes(source: Any, dtype: torch.dtype) -> None:
    """Give raw bytes (a loaded file) the dtype of the first tensor that looks at them."""
    twin = dtypes.to_jax(dtype)
    if "host" in source.__dict__:  # its kernels see it in any dtype
        return
    array: Any = source.array
    if array.dtype == jnp.uint8 and array.ndim == 1 and array.size and twin.itemsize > 1:
        if array.size % twin.itemsize == 0:
            array = storage.memory_in(source)
            with x64():
                storage.put_back((source,), (array,), (geometry.bitcast(array, twin),))


@kernel("set_.source_Storage")
def set_whole_storage(self, source) -> torch.Tensor:
    """Make ``self`` see all of ``source``, flat."""
    return set_storage(self, source, 0, (source.nbytes() // self.dtype.itemsize,), (1,))


@kernel("set_")
def set_nothing(self) -> torch.Tensor:
    """Make ``self`` an empty tensor with a storage of its own."""
    return set_storage(self, _new_zeros((0,), (1,), self.dtype).untyped_storage(), 0, (0,), (1,))


@kernel("resize_")
def resize_(self, size, memory_format=None) -> torch.Tensor:
    """Change the sizes in place, to contiguous strides; the storage grows where it must."""
    if tuple(size) == tuple(self.shape) and memory_format is None:
        return self
    stride = _strides(size, memory_format)
    before = _elements_in_storage(self)
    set_storage(self, self.untyped_storage(), self.storage_offset(), size, stride)
    if _fills() and (added := _elements_in_storage(self) - before) > 0:
        storage.restride(self, (added,), (1,), before).fill_(_garbage(self.dtype))
    return self


@kernel("record_stream")
def record_stream(self: torch.Tensor, s: Any) -> None:
    """Do nothing: JAX frees memory when all its readers have ended."""
