"""Matrix products.

Half types accumulate in float32 and are rounded once, after ``alpha`` and ``beta``. A ``beta`` of 0
is static: it must ignore NaN in ``self``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from torch_jax import target
from torch_jax.ops.precision import precision
from torch_jax.ops.promotion import category, opmath, promote, result_type
from torch_jax.ops.reduction import sum_dim
from torch_jax.ops.registry import among, known, op

_BETA = {"beta": among(0, 1)}


def dot(a: jax.Array, b: jax.Array, contract: tuple, batch: tuple = ((), ())) -> jax.Array:
    """Do ``lax.dot_general`` with the precision that is set; half types give float32."""
    if a.dtype != b.dtype:
        raise RuntimeError(f"expected scalar type {a.dtype} but found {b.dtype}")
    exact, wide = precision(a.dtype), opmath(a.dtype)
    return lax.dot_general(a, b, (contract, batch), precision=exact, preferred_element_type=wide)


def matrix_product(
    a: jax.Array, b: jax.Array, product: Callable[..., jax.Array] = dot
) -> jax.Array:
    """Return the product of two matrices, the first's rows in any dims; or of two batches."""
    if b.ndim == 3:
        return product(a, b, ((2,), (1,)), ((0,), (0,)))
    return product(a, b, ((a.ndim - 1,), (0,)))


def _rounded(a: jax.Array, b: jax.Array, contract: tuple, batch: tuple = ((), ())) -> jax.Array:
    """Return ``dot`` whose bfloat16s give bfloat16 on chips, which sum in float32.

    Over a mesh, XLA then sums the parts of a product in half the bytes. The precision is the
    default: it is exact for bfloat16, and the compiler of TPUs fails on batches with another
    (libtpu 0.0.42: "Bad lhs type"). Products of CPUs may sum in the dtype that they give.
    """
    if a.dtype != jnp.bfloat16 or a.dtype != b.dtype or target.on_cpu():
        return dot(a, b, contract, batch)
    exact = lax.Precision.DEFAULT  # under any setting of JAX
    return lax.dot_general(a, b, (contract, batch), precision=exact, preferred_element_type=a.dtype)


def _blend(self, product, beta, alpha):
    """Return ``beta * self + alpha * product``, without a read of ``self`` if ``beta`` is 0."""
    if category(product.dtype) == 1:
        beta, alpha = (jnp.asarray(x).astype(product.dtype) for x in (beta, alpha))  # truncated
    if known(alpha) != 1:
        product = product * alpha
    if known(beta) == 0:
        jnp.broadcast_to(self, product.shape)  # raises where it does not fit
        return product
    self = self.astype(product.dtype)
    return product + (self if known(beta) == 1 else self * beta)


op("mm", "bmm", products=True, rows="self")(lambda self, mat2: matrix_product(self, mat2, _rounded))


@op("mm.dtype", "bmm.dtype", products=True)
def mm_dtype(self, mat2, out_dtype):
    """Multiply matrices of half types; the float32 sum is not rounded back."""
    return matrix_product(self, mat2).astype(out_dtype)


@op("addmm", "baddbmm", static=_BETA, products=True, rows="mat1")
def addmm(self, mat1, mat2, *, beta=1, alpha=1):
    """Return ``beta * self + alpha * (mat1 @ mat2)``."""
    if self.dtype != mat2.dtype:
        raise RuntimeError(f"self and mat2 must have the same dtype, not {self.dtype}")
    if mat2.ndim == self.ndim == 2 < mat1.ndim and len(self) > 1:  # its rows as those of ``mat1``
        self = self.reshape(*mat1.shape[:-1], -1)
    product = _blend(self, matrix_product(mat1, mat2), beta, alpha)
    return jnp.broadcast_to(product, (*mat1.shape[:-1], mat2.shape[-1]))


@op("addmm.dtype", "baddbmm.dtype", static=_BETA, products=True)
def addmm_dtype(self, mat1, mat2, out_dtype, *, beta=1, alpha=1):
    """Do ``addmm`` of half types with a float32 result."""
    return addmm(self, mat1, mat2, beta=beta, alpha=alpha).astype(out_dtype)


@op("linear", products=True)
def linear(input, weight, bias=None):
    """Return ``input @ weight.T + bias``, of features in the last dimension."""
    features = (input.ndim - 1,), (weight.ndim - 1,)
    if bias is None:
        return _rounded(input, weight, features)
    return _blend(bias, dot(input, weight, features), 1, 1)


@op("linear_backward", products=True, meta=False)
def linear_backward(self, grad_output, weight, output_mask):
    """Return the gradients of :func:`linear`'s arguments, None for those that are not asked for.

    Not for complex numbers, whose gradient would be that of the conjugates.
    """
    *rows, last = range(self.ndim)
    of_input, of_weight, of_bias = output_mask
    found = (
        _rounded(grad_output, weight, ((last,), (0,))) if of_input else None,
        _sum_of_rows(grad_output, self) if of_weight else None,
        sum_dim(grad_output, rows) if of_bias else None,
    )
    return tuple(None if one is None else one.astype(grad_output.dtype) for one in found)


def _sum_of_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the sum of the rows' outer products; for the compiler of CPUs as one of matrices.

    It transposes the memory of operands that are summed over two dims.
    """
    if target.on_cpu():
        a, b = (x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (a, b))
    rows = (*range(a.ndim - 1),)
    return _rounded(a, b, (rows, rows))


@op("addbmm", static=_BETA, products=True)
def addbmm(self, batch1, batch2, *, beta=1, alpha=1):
    """Add ``beta * self`` and the batch's sum of products: one contraction of two axes."""
    product = dot(batch1, batch2, ((0, 2), (0, 1)))
    return jnp.broadcast_to(_blend(self, product, beta, alpha), product.shape)


@op("mv", products=True)
def mv(self, vec):
    """Multiply a matrix by a vector."""
    return dot(self, vec, ((1,), (0,)))


@op("addmv", static=_BETA, products=True)
def addmv(self, mat, vec, *, beta=1, alpha=1):
    """Return ``beta * self + alpha * (mat @ vec)``; ``beta * self`` of a matrix without rows."""
    whole = jnp.broadcast_to(_blend(self, mv(mat, vec), beta, alpha), mat.shape[:1])
    return whole if whole.size or known(beta) == 0 else self * beta


op("dot", products=True)(lambda self, tensor: dot(self, tensor, ((0,), (0,))))
op("vdot", products=True)(lambda self, other: dot(self.conj(), other, ((0,), (0,))))


@op("addr", static=_BETA)
def addr(self, vec1, vec2, *, beta=1, alpha=1):
    """Add ``beta * self`` and ``alpha`` times the outer product; for bool, ``or`` and ``and``."""
    dtype = result_type(self, vec1, vec2)
    self, vec1, vec2 = promote(self, vec1, vec2)
    if category(dtype) == 0:
        return vec1[:, None] & vec2 & (alpha != 0) | self & (beta != 0)
    vec1 = vec1.astype(opmath(dtype))
    outer = (vec1 if known(alpha) == 1 else vec1 * alpha)[:, None] * vec2.astype(opmath(dtype))
    return _blend(self, outer, beta, 1)


op("_int_mm")(lambda self, mat2: lax.dot(self, mat2, preferred_element_type=jnp.int32))


@op("_trilinear", products=True)
def _trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """Multiply three tensors, each lacking the dimensions ``expand``, and sum over ``sumdim``."""
    operands = []
    rank = i1.ndim + len(expand1)
    for x, expand in ((i1, expand1), (i2, expand2), (i3, expand3)):
        operands += [x, [d for d in range(rank) if d not in expand]]
    kept = [d for d in range(rank) if d not in sumdim]
    exact, wide = precision(i1.dtype), opmath(i1.dtype)
    return jnp.einsum(*operands, kept, precision=exact, preferred_element_type=wide)
