"""Sparse COO tensors: PyTorch's own container, whose indices and values are tensors of the device.

PyTorch's kernels for meta tensors make and read the container, as its meta kernel of ``as_strided``
makes views. Arithmetic is that of its kernels for the CPU where these compose it of operators of
indices and values; sums and products of matrices are composed here. Other operators that PyTorch
has for sparse tensors run on the CPU, with a warning. The rest, and every other layout, raise at
once, with a remedy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torch_jax._private import dynamo, pytorch
from torch_jax.core import errors
from torch_jax.dispatch import cpu
from torch_jax.dispatch.storage_kernels import kernel
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
    _values dense_dim indices is_coalesced sparse_dim sparse_resize_ sparse_resize_and_clear_ sum
    values zero_
"""
# Operators whose kernels for the CPU call other operators, and read no memory themselves.
_COMPOSED = """
    _to_dense add.Tensor add_.Tensor clone copy_ div.Tensor div.Tensor_mode div_.Tensor
    div_.Tensor_mode floor_divide floor_divide_.Tensor mul.Tensor mul_.Tensor mv neg sub.Tensor
    sub_.Tensor view_as_complex view_as_real
"""

# Operators that make compressed and nested tensors, refused at once: by the keys of what they take
# and of what they make.
_REFUSED = {
    (_COMPRESSED, _COMPRESSED): """
        _to_copy
        sparse_compressed_tensor.comp_plain_value sparse_compressed_tensor.comp_plain_value_size
    """,
    ("AutogradPrivateUse1", _COMPRESSED): """
        _sparse_compressed_tensor_unsafe _sparse_csr_tensor_unsafe _sparse_csc_tensor_unsafe
        _sparse_bsr_tensor_unsafe _sparse_bsc_tensor_unsafe
    """,
    ("AutogradPrivateUse1", _NESTED): "_nested_view_from_buffer",
}

_KERNELS: dict[str, Callable[..., Any]] = {}
_kernel = variants.entering(_KERNELS)


def install() -> list[Any]:
    """Register all sparse kernels; the libraries returned keep them registered."""
    library = torch.library.Library("aten", "IMPL")
    container, composed = (_overloads(names.split()) for names in (_CONTAINER, _COMPOSED))
    of_the_cpu = _with_kernel("SparseCPU") - container - _overloads(_KERNELS)
    # those that keep zeros, and so run on the values alone
    pointwise = {op for op in of_the_cpu if torch.Tag.pointwise in op.tags}
    composed |= {op for op in pointwise if len(op._schema.arguments) == 1}
    for op in container:
        library.impl(op, pytorch.redispatched(op, pytorch.SPARSE_META_KEYS), _COO)
    for op in composed:
        library.impl(op, functools.partial(_by_pytorch, op), _COO)
    for op in of_the_cpu - composed:
        library.impl(op, dynamo.unseen(cpu.on_cpu(op)), _COO)
    for name, function in _KERNELS.items():
        library.impl(variants.overload(name), dynamo.unseen(function), _COO)
    for (taken, made), names in _REFUSED.items():
        for op in _overloads(names.split()):
            library.impl(op, functools.partial(_refuse, made, op), taken)
    for op in _with_kernel("NestedTensorCPU"):  # composites would ask for sizes
        if pytorch.has_kernel(op.name(), "CompositeImplicitAutograd"):
            library.impl(op, functools.partial(_refuse, _NESTED, op), _NESTED)
    # which autograd reads of each result: an error there would end the process
    sizes = torch.ops.aten._nested_tensor_size.default
    library.impl(sizes, pytorch.redispatched(sizes, pytorch.NESTED_CPU_KEYS), _NESTED)
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


def _by_pytorch(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run PyTorch's kernel for the CPU; numbers that it takes as tensors become these again."""
    one = next(arg for arg in args if isinstance(arg, torch.Tensor))
    taken = [
        torch.tensor(arg, dtype=torch.result_type(one, arg))
        if str(argument.type) == "Tensor" and not isinstance(arg, torch.Tensor)
        else arg
        for arg, argument in zip(args, op._schema.arguments, strict=False)
    ]
    return op.redispatch(pytorch.SPARSE_CPU_KEYS, *taken, **kwargs)


# --- the container --------------------------------------------------------------------------------


def _make(like: Any, indices: Any, values: Any, coalesced: bool = False) -> Any:
    options: Any = {"is_coalesced": coalesced or not indices.shape[1], "check_invariants": False}
    return torch.sparse_coo_tensor(indices, values, like.shape, **options)


def _places(indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return an index for each sparse dim; without any, for one of size 1."""
    return tuple(indices.unbind(0)) or (indices.new_zeros(indices.shape[1]),)


def _over_places(dense: torch.Tensor, sparse: Any) -> torch.Tensor:
    """Return a view of a dense tensor whose leading dims are those of a sparse one's places."""
    return dense if sparse.sparse_dim() else dense[None]


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout != torch.strided


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


for _name in ("_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"):
    kernel(_name)(functools.partial(_refuse, _COMPRESSED, variants.overload(_name)))


@_kernel("sparse_mask")
def _sparse_mask(self, mask) -> Any:
    """Return the values of a tensor at the places of a sparse one: PyTorch multiplies for them."""
    dense, indices = self.to_dense(), mask._indices()
    if mask._nnz():
        values = _over_places(dense, mask)[_places(indices)]
    else:
        values = dense.new_empty(mask._values().shape)
    return _make(mask, indices, values, mask.is_coalesced())


@_kernel("add.out")
def _add_out(self, other, *, alpha=1, out) -> Any:
    """Add a sparse tensor to a dense or sparse one; PyTorch's other overloads come by here."""
    wanted = torch.result_type(self, other)
    errors.refuse_cast(wanted, out.dtype)
    if self.layout != torch.strided and not _is_sparse(other):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    if self.shape != other.shape or (_is_sparse(self) and self.sparse_dim() != other.sparse_dim()):
        raise RuntimeError(
            "add: expected 'self' and 'other' to be of same size, but self has size "
            f"{tuple(self.shape)} while other has size {tuple(other.shape)}"
        )
    values = other._values().to(wanted) * alpha
    if self.layout == torch.strided:
        dense = self if out is self else out.resize_(self.shape).copy_(self)
        if other._nnz():  # there may be no place at all
            places, values = _places(other._indices()), values.to(out.dtype)
            _over_places(dense, other).index_put_(places, values, accumulate=True)
        return dense
    indices = torch.cat([self._indices(), other._indices()], 1)
    values = torch.cat([self._values().to(out.dtype), values.to(out.dtype)])
    total = _make(self, indices, values)
    if self.is_coalesced() and other.is_coalesced():  # then PyTorch's sum on the CPU is, too
        total = total.coalesce()
    return torch.ops.aten.copy_sparse_to_sparse_(out, total)


@_kernel("mul.out")
def _multiply_out(self, other, *, out) -> Any:
    """Multiply by PyTorch's kernel, which composes all products but those of two sparse tensors."""
    if not (_is_sparse(self) and _is_sparse(other)):
        return _by_pytorch(torch.ops.aten.mul.out, self, other, out=out)
    product = cpu.on_cpu(torch.ops.aten.mul.Tensor)(self, other)
    errors.refuse_cast(product.dtype, out.dtype)
    return torch.ops.aten.copy_sparse_to_sparse_(out, product)


@kernel("_embedding_bag_backward")
def _embedding_bag_backward(
    grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights,
    scale_grad_by_freq, mode, sparse, per_sample_weights, padding_idx=-1,
) -> Any:  # fmt: skip
    """Return gradients of ``nn.EmbeddingBag``: PyTorch composes the sparse gradient of rows."""
    integer = torch.promote_types(indices.dtype, offsets.dtype)
    indices, offsets = indices.to(integer), offsets.to(integer)
    if not offset2bag.numel():  # the CPU's kernel leaves it to the backward pass
        places = torch.arange(indices.numel(), dtype=integer, device=indices.device)
        is_short = integer == torch.int32
        offset2bag = torch.searchsorted(offsets, places, right=True, out_int32=is_short) - 1
    bags = offset2bag, bag_size
    options = scale_grad_by_freq, mode, per_sample_weights, padding_idx
    if sparse:
        make = torch.ops.aten._embedding_bag_sparse_backward
        return make(grad, indices, offsets, *bags, num_weights, *options)
    make = torch.ops.aten._embedding_bag_dense_backward
    return make(grad, indices, *bags, maximum_indices, num_weights, *options)


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
