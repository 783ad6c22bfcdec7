"""Sparse COO tensors: PyTorch's own container, whose indices and values are tensors of the device.

PyTorch's kernels for meta tensors make and read the container, as its meta kernel of ``as_strided``
makes views. Arithmetic is composed here of gathers and scatters of the dense operators. Other
operators that PyTorch has for sparse tensors run on the CPU, with a warning. The rest, and every
other layout, raise at once, with a remedy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torch_jax._private import dynamo, pytorch
from torch_jax.core import errors
from torch_jax.dispatch import cpu
from torch_jax.dispatch.storage_kernels import entering, kernel
from torch_jax.eager import variants

_COO = "SparsePrivateUse1"
_COMPRESSED = "SparseCsrPrivateUse1"
_NESTED = "NestedTensorPrivateUse1"
_REMEDIES = {
    _COO: "sparse COO tensors; call .to_dense() first, or keep it on the CPU",
    _COMPRESSED: "sparse compressed tensors; use .to_sparse(), in layout torch.sparse_coo, or keep "
    "it on the CPU",
    "QuantizedPrivateUse1": "quantized tensors; keep it on the CPU, or dequantize() it there first",
    _NESTED: "strided nested tensors; use layout=torch.jagged, or pad it on the CPU",
}
# Operators that make, read and mark the container, and compute nothing.
_CONTAINER = """
    empty.memory_format empty_like _sparse_coo_tensor_with_dims
    _sparse_coo_tensor_with_dims_and_tensors _coalesced_ copy_sparse_to_sparse_ _dimV _indices _nnz
    _values dense_dim indices is_coalesced sparse_dim sparse_resize_ sparse_resize_and_clear_ values
"""

# Operators that make compressed tensors of PyTorch's composites, refused at once.
_REFUSED = {
    _COMPRESSED: """
        _to_copy
        sparse_compressed_tensor.comp_plain_value sparse_compressed_tensor.comp_plain_value_size
    """,
    "AutogradPrivateUse1": """
        _sparse_compressed_tensor_unsafe _sparse_csr_tensor_unsafe _sparse_csc_tensor_unsafe
        _sparse_bsr_tensor_unsafe _sparse_bsc_tensor_unsafe
    """,
}

_KERNELS: dict[str, Callable[..., Any]] = {}
_kernel = entering(_KERNELS)


def install() -> list[Any]:
    """Register all sparse kernels; the libraries returned keep them registered."""
    library = torch.library.Library("aten", "IMPL")
    container, of_the_cpu = _overloads(_CONTAINER.split()), _with_kernel("SparseCPU")
    for op in container:
        library.impl(op, functools.partial(op.redispatch, pytorch.SPARSE_META_KEYS), _COO)
    for op in of_the_cpu.difference(container, _overloads(_KERNELS)):
        library.impl(op, dynamo.unseen(functools.partial(_of_pytorch(op), op)), _COO)
    for name, function in _KERNELS.items():
        library.impl(variants.overload(name), dynamo.unseen(function), _COO)
    for key, names in _REFUSED.items():
        for op in _overloads(names.split()):
            library.impl(op, functools.partial(_refuse, _COMPRESSED, op), key)
    for op in _with_kernel("NestedTensorCPU"):  # composites would ask for sizes
        if pytorch.has_kernel(op.name(), "CompositeImplicitAutograd"):
            library.impl(op, functools.partial(_refuse, _NESTED, op), _NESTED)
    others = torch.library.Library("_", "IMPL")
    for key in _REMEDIES:
        others.fallback(functools.partial(_refuse, key), key)
    return [library, others]


def _overloads(names: Iterable[str]) -> set[Any]:
    """Return the overloads of these names that this release has."""
    return {op for name in names if (op := variants.overload(name)) is not None}


def _with_kernel(key: str) -> set[Any]:
    """Return the overloads of aten for which PyTorch has a kernel of a dispatch key."""
    names = pytorch.names_with_kernel(key)
    return _overloads(name.removeprefix("aten::") for name in names if name.startswith("aten::"))


def _refuse(key: str, op: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        f"{errors.describe_call(op, args, kwargs)}: device 'jax' does not do this with "
        f"{_REMEDIES[key]}"
    )


def _of_pytorch(op: Any) -> Callable[..., Any]:
    """Return the function that runs an operator which PyTorch has for sparse CPU tensors.

    Without it PyTorch's composites would run in the place of some, and compute strides.
    """
    pointwise = torch.Tag.pointwise in op.tags and not op._schema.is_mutable
    return _of_values if pointwise and len(op._schema.arguments) == 1 else _on_cpu


def _on_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    return cpu.on_cpu(op)(*args, **kwargs)


def _of_values(op: Any, self: Any) -> Any:
    """Run an operator that keeps zeros on the values alone."""
    coalesced = self.coalesce()
    return _with_values(coalesced, op(coalesced._values()))


# --- the container --------------------------------------------------------------------------------


def _make(like: Any, indices: Any, values: Any, size: Any = None, coalesced: bool = False) -> Any:
    """Return a sparse tensor with other indices or values than ``like``."""
    make = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
    size = like.shape if size is None else size
    dims = indices.shape[0], len(size) - indices.shape[0]
    options = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": values.device}
    coalesced = coalesced or not indices.shape[1]
    return make(*dims, list(size), indices, values, is_coalesced=coalesced, **options)


def _with_values(tensor: Any, values: Any) -> Any:
    """Return a sparse tensor with the same places and other values."""
    return _make(tensor, tensor._indices(), values, coalesced=tensor.is_coalesced())


def _places(indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return an index for each sparse dim; without any, for the one of :func:`_over_places`."""
    return tuple(indices.unbind(0)) or (indices.new_zeros(indices.shape[1]),)


def _over_places(dense: torch.Tensor, sparse: Any) -> torch.Tensor:
    """Return a view of a dense tensor whose leading dims are those of a sparse one's places."""
    return dense if sparse.sparse_dim() else dense[None]


def _taken(dense: torch.Tensor, sparse: Any) -> torch.Tensor:
    """Return the values of a dense tensor at the places of a sparse one."""
    if not sparse._nnz():  # there may be no place at all
        return dense.new_empty(sparse._values().shape)
    return _over_places(dense, sparse)[_places(sparse._indices())]


def _added(dense: torch.Tensor, sparse: Any, values: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor with values added at the places of a sparse one."""
    if sparse._nnz():
        places = _places(sparse._indices())
        _over_places(dense, sparse).index_put_(places, values, accumulate=True)
    return dense


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout != torch.strided


@_kernel("_to_copy")
def _to_copy(self, *, dtype=None, layout=None, device=None, **_options: Any) -> Any:
    if layout not in (None, torch.sparse_coo):
        return _on_cpu(torch.ops.aten._to_copy.default, self, dtype=dtype, layout=layout)
    return _moved(self, dtype, device)


def _moved(self: Any, dtype: Any, device: Any) -> Any:
    target = self.device if device is None else torch.device(device)
    indices = self._indices().to(target, copy=True)
    values = self._values().to(target, dtype, copy=True)
    if target.type == pytorch.DEVICE_TYPE:
        return _make(self, indices, values, coalesced=self.is_coalesced())
    return torch.sparse_coo_tensor(
        indices, values, self.shape, is_coalesced=self.is_coalesced(), check_invariants=False
    )


@_kernel("clone")
def _clone(self, memory_format=None) -> Any:
    return _moved(self, None, None)


@_kernel("copy_")
def _copy(self, src, non_blocking=False) -> Any:
    if torch.strided in (self.layout, src.layout):
        raise RuntimeError(
            "copy_() between dense and sparse Tensors is not implemented! Found self "
            f"type = {self.type()} and src type = {src.type()}"
        )
    return _take(self, _moved(src, self.dtype, self.device))


def _take(self: Any, new: Any) -> Any:
    """Give ``self`` the indices and values of another sparse tensor."""
    return torch.ops.aten.copy_sparse_to_sparse_(self, new)


@_kernel("_coalesce")
def _coalesce(self) -> Any:
    """Add values of equal indices, and sort the indices."""
    rows = self.shape[: self.sparse_dim()]
    steps = [1] * len(rows)
    for axis in reversed(range(len(rows) - 1)):
        steps[axis] = steps[axis + 1] * rows[axis + 1]
    columns = self._indices().new_tensor(steps or [1])[:, None]
    flat = (torch.stack(_places(self._indices())) * columns).sum(0)
    flat, number = torch.unique(flat, return_inverse=True)
    values = self._values()
    added = values.new_zeros(flat.shape[0], *values.shape[1:]).index_add_(0, number, values)
    below = list(zip(steps, rows, strict=True))
    indices = torch.stack([flat // max(step, 1) % max(row, 1) for step, row in below] or [flat])
    return _make(self, indices[: len(rows)], added, coalesced=True)


# --- to and from dense ----------------------------------------------------------------------------


@_kernel("_to_dense")
def _to_dense(self, dtype=None, masked_grad=None) -> torch.Tensor:
    values = self._values() if dtype is None else self._values().to(dtype)
    return _added(values.new_zeros(self.shape), self, values)


@kernel("_to_sparse")
def _to_sparse(self, *, layout=None, blocksize=None, dense_dim=None) -> Any:
    if layout not in (None, torch.sparse_coo):
        raise NotImplementedError(
            f"device 'jax' has sparse tensors of layout torch.sparse_coo only, not {layout}: "
            "use .to_sparse(), or keep it on the CPU"
        )
    return _to_sparse_dim(self, self.dim() - (dense_dim or 0))


@kernel("_to_sparse.sparse_dim")
def _to_sparse_dim(self, sparse_dim: int) -> Any:
    if not min(self.dim(), 1) <= sparse_dim <= self.dim():
        raise RuntimeError(
            f"dense_to_sparse: sparse_dim argument must be in [{min(self.dim(), 1)},{self.dim()}] "
            f"range, but {sparse_dim} is given"
        )
    rest = tuple(range(sparse_dim, self.dim()))
    indices = ((self != 0).any(dim=rest) if rest else self != 0).nonzero().t().contiguous()
    values = self if sparse_dim else self[None]
    return _make(self, indices, values[_places(indices)], coalesced=True)


for _name in ("_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"):
    if (_op := variants.overload(_name)) is not None:
        kernel(_name)(functools.partial(_refuse, _COMPRESSED, _op))


@_kernel("sparse_mask")
def _sparse_mask(self, mask) -> Any:
    """Return the values of a dense tensor at the places of a sparse one."""
    if self.layout != torch.strided:
        self = self.to_dense()
    return _with_values(mask, _taken(self, mask))


# --- arithmetic -----------------------------------------------------------------------------------


def _scaled(self: Any, other: Any, alpha: Any) -> torch.Tensor:
    """Return the values of a summand, in the dtype of the sum: unsigned ones may be subtracted."""
    return other._values().to(torch.result_type(self, other)) * alpha


@_kernel("add.Tensor")
def _add(self, other, *, alpha=1) -> Any:
    if self.layout == torch.strided:
        wanted = torch.result_type(self, other)
        return _add_to_dense(self.to(wanted, copy=True), other, alpha=alpha)
    if not _is_sparse(other):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    if self.shape != other.shape or self.sparse_dim() != other.sparse_dim():
        raise RuntimeError(
            f"add: Expected 'self' and 'other' to have same size, but {tuple(self.shape)} != "
            f"{tuple(other.shape)}"
        )
    indices = torch.cat([self._indices(), other._indices()], 1)
    return _make(self, indices, torch.cat([self._values(), _scaled(self, other, alpha)]))


@_kernel("add_.Tensor")
def _add_to_dense(self, other, *, alpha=1) -> Any:
    errors.refuse_cast(torch.result_type(self, other), self.dtype)
    if self.layout != torch.strided:
        return _take(self, _add(self, other, alpha=alpha).to(self.dtype))
    if self.shape != other.shape:
        raise RuntimeError(
            "add: expected 'self' and 'other' to be of same size, but self has size "
            f"{tuple(self.shape)} while other has size {tuple(other.shape)}"
        )
    return _added(self, other, _scaled(self, other, alpha).to(self.dtype))


@_kernel("sub.Tensor")
def _subtract(self, other, *, alpha=1) -> Any:
    return _add(self, other, alpha=-alpha)


@_kernel("sub_.Tensor")
def _subtract_in_place(self, other, *, alpha=1) -> Any:
    return _add_to_dense(self, other, alpha=-alpha)


@_kernel("mul.Tensor", "mul.Scalar")
def _multiply(self, other) -> Any:
    """Multiply by a number, or by a dense tensor of the same shape, in either order."""
    if _is_sparse(other):
        self, other = other, self
    if _is_sparse(other):
        return _on_cpu(torch.ops.aten.mul.Tensor, self, other)
    if isinstance(other, torch.Tensor) and other.dim():
        other = _taken(other.expand(self.shape), self)
    return _with_values(self, self._values() * other)


@_kernel("div.Tensor", "div.Scalar")
def _divide(self, other) -> Any:
    if self.layout == torch.strided or (isinstance(other, torch.Tensor) and other.dim()):
        return _on_cpu(torch.ops.aten.div.Tensor, self, other)
    return _with_values(self, self._values() / other)


@_kernel("mul_.Tensor", "mul_.Scalar")
def _multiply_in_place(self, other) -> Any:
    if self.layout == torch.strided or (isinstance(other, torch.Tensor) and other.dim()):
        return _on_cpu(torch.ops.aten.mul_.Tensor, self, other)
    self._values().mul_(other)
    return self


@_kernel("neg")
def _negate(self) -> Any:
    return _with_values(self, -self._values())


@_kernel("view_as_real")
def _as_real(self) -> Any:
    values = torch.view_as_real(self._values())
    return _make(self, self._indices(), values, (*self.shape, 2), self.is_coalesced())


@_kernel("view_as_complex")
def _as_complex(self) -> Any:
    values = torch.view_as_complex(self._values())
    return _make(self, self._indices(), values, self.shape[:-1], self.is_coalesced())


@_kernel("zero_")
def _zero(self) -> Any:
    return self.sparse_resize_and_clear_(self.shape, self.sparse_dim(), self.dense_dim())


@_kernel("sum")
def _sum(self, *, dtype=None) -> torch.Tensor:
    return self._values().sum(dtype=dtype)


# --- gradients of tables --------------------------------------------------------------------------


@kernel("_embedding_bag_backward")
def _embedding_bag_backward(
    grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights,
    scale_grad_by_freq, mode, sparse, per_sample_weights, padding_idx=-1,
) -> Any:  # fmt: skip
    """Return gradients of ``nn.EmbeddingBag``: PyTorch composes the sparse gradient of rows."""
    if not offset2bag.numel():  # the CPU's kernel leaves it to the backward pass
        places = torch.arange(indices.numel(), dtype=offsets.dtype, device=indices.device)
        offset2bag = torch.searchsorted(offsets, places, right=True) - 1
    bags = offset2bag, bag_size
    options = scale_grad_by_freq, mode, per_sample_weights, padding_idx
    if sparse:
        make = torch.ops.aten._embedding_bag_sparse_backward
        return make(grad, indices, offsets, *bags, num_weights, *options)
    make = torch.ops.aten._embedding_bag_dense_backward
    return make(grad, indices, *bags, maximum_indices, num_weights, *options)


# --- products -------------------------------------------------------------------------------------


@_kernel("mm")
def _mm(self, mat2) -> torch.Tensor:
    """Multiply a sparse matrix by a dense one: dense rows are gathered, weighted and added."""
    if self.layout == torch.strided and mat2.layout != torch.strided:
        return _mm(mat2.t(), self.t()).t()
    dense = self.layout == torch.strided or mat2.layout != torch.strided
    if dense or self.sparse_dim() != 2 or self.dense_dim():
        _refuse(_COO, torch.ops.aten.mm.default, self, mat2)
    if self.shape[1] != mat2.shape[0] or mat2.dim() != 2:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({errors.describe(self)} and "
            f"{errors.describe(mat2)})"
        )
    row, column = _places(self._indices())
    weighted = self._values()[:, None] * mat2[column]
    return weighted.new_zeros(self.shape[0], mat2.shape[1]).index_add_(0, row, weighted)


@_kernel("addmm")
def _addmm(self, mat1, mat2, *, beta=1, alpha=1) -> torch.Tensor:
    return self * beta + _mm(mat1, mat2) * alpha


@_kernel("mv")
def _mv(self, vec) -> torch.Tensor:
    return _mm(self, vec[:, None])[:, 0]
