"""Matrix decompositions. All take batches of matrices, (*, m, n)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import linalg as lax_linalg

from torch_jax import target
from torch_jax.ops.derivatives import differentiated_as
from torch_jax.ops.on_host import on_host
from torch_jax.ops.promotion import promote
from torch_jax.ops.registry import column_major, op


def adjoint(x: jax.Array) -> jax.Array:
    return jnp.conj(x.mT)


def nothing(x: jax.Array) -> jax.Array:
    """Return an empty array, in place of an output that was not asked for."""
    return jnp.zeros((0,), x.dtype)


# Errors. ``info`` (int32) of a factorization is the first pivot that failed, from 1 on, or 0.


_REASONS = {  # by a part of the operator's name
    "inv": "The inversion could not be completed because the input matrix is singular.",
    "solve": "The solver failed because the input matrix is singular.",
    "cholesky": "The factorization could not be completed because the input is not "
    "positive-definite.",
    "": "The factorization of a matrix has failed.",
}


def _succeeds(info, api_name):
    """Return, for ``check=``, whether a factorization has succeeded."""
    reason = next(reason for part, reason in _REASONS.items() if part in api_name)
    return (info == 0).all(), f"{api_name}: {reason}", np.linalg.LinAlgError


@op("_linalg_check_errors", meta=False, check=_succeeds)
def check_errors(info, api_name, *, is_matrix):
    """Raise for a failed factorization; programs raise after they have run."""
    return ()


def raises(check_errors: bool = False) -> bool:
    """Return whether an operator raises its own errors, and so must know values (``concrete=``)."""
    return check_errors


def raised(info: jax.Array, api_name: str, wanted: bool = True) -> None:
    ok, message, kind = _succeeds(info, api_name)
    if wanted and not isinstance(info, jax.core.Tracer) and not on_host(ok):
        raise kind(message)


# LU


def lu_factor(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return L and U in one array, pivots counted from 1, and info."""
    k = min(x.shape[-2:])
    if x.size == 0:
        pivots = jnp.broadcast_to(jnp.arange(1, k + 1, dtype=jnp.int32), (*x.shape[:-2], k))
        return x, pivots, jnp.zeros(x.shape[:-2], jnp.int32)
    lu, pivots, _ = lax_linalg.lu(x)
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    info = jnp.where(zero.any(-1), jnp.argmax(zero, -1) + 1, 0)
    return lu, pivots + 1, info.astype(jnp.int32)


def permutation(pivots: jax.Array, size: int) -> jax.Array:
    """Return the rows' order that ``pivots`` lead to: L @ U is A[order]."""
    if pivots.size == 0:
        return jnp.broadcast_to(jnp.arange(size), (*pivots.shape[:-1], size))
    return lax_linalg.lu_pivots_to_permutation(pivots - 1, size)


def _permutation_matrix(pivots, size, dtype):
    return jax.nn.one_hot(permutation(pivots, size), size, dtype=dtype).mT


def _triangles(lu):
    m, n = lu.shape[-2:]
    k = min(m, n)
    lower = jnp.tril(lu[..., :, :k], -1) + jnp.eye(m, k, dtype=lu.dtype)
    return lower, jnp.triu(lu[..., :k, :])


def _need_pivot(pivot: bool) -> None:
    if not pivot:
        raise NotImplementedError("LU without pivoting is not implemented on device jax")


@op("linalg_lu_factor_ex", concrete=raises)
def linalg_lu_factor_ex(A, *, pivot=True, check_errors=False):
    _need_pivot(pivot)
    lu, pivots, info = lu_factor(A)
    raised(info, "torch.linalg.lu_factor_ex", check_errors)
    return lu, pivots, info


@op("linalg_lu")
def linalg_lu(A, *, pivot=True):
    _need_pivot(pivot)
    lu, pivots, _ = lu_factor(A)
    return _permutation_matrix(pivots, A.shape[-2], A.dtype), *_triangles(lu)


@op("lu_unpack")
def lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    none = nothing(LU_data)
    size = LU_data.shape[-2]
    p = _permutation_matrix(LU_pivots, size, LU_data.dtype) if unpack_pivots else none
    return p, *(_triangles(LU_data) if unpack_data else (none, none))


def _determinant_parts(A, A_strides):
    """Return LU, pivots, the diagonal of U, and the sign of the permutation."""
    steps = (math.prod(A.shape[dim + 1 :]) for dim in range(A.ndim))
    dims = zip(A.shape, A_strides, steps, strict=True)
    is_plain = all(s == step or n == 1 for n, s, step in dims)
    transposed = is_plain and not jnp.iscomplexobj(A)  # PyTorch's gradient counts on it
    lu, pivots, _ = lu_factor(A.mT if transposed else A)
    odd = jnp.sum(pivots != jnp.arange(1, A.shape[-1] + 1), axis=-1) % 2
    return lu, pivots, jnp.diagonal(lu, axis1=-2, axis2=-1), (1 - 2 * odd).astype(A.dtype)


def _determinant(A, A_strides):
    _, lu, pivots = linalg_det(jax.lax.stop_gradient(A), A_strides=A_strides)
    return jnp.linalg.det(A), lu, pivots


@op("_linalg_det", strided=("A",))
@differentiated_as(_determinant)
def linalg_det(A, *, A_strides):
    lu, pivots, diagonal, sign = _determinant_parts(A, A_strides)
    return sign * jnp.prod(diagonal, axis=-1), lu, pivots


@op("_linalg_slogdet", strided=("A",))
def linalg_slogdet(A, *, A_strides):
    lu, pivots, diagonal, sign = _determinant_parts(A, A_strides)
    sign = sign * jnp.prod(jnp.sign(diagonal), axis=-1)
    return sign, jnp.sum(jnp.log(jnp.abs(diagonal)), axis=-1), lu, pivots


# Cholesky


def _first_bad_minor(x: jax.Array) -> jax.Array:
    """Return the order of the first leading minor that is not positive; 0 if none is."""

    def eliminate(k, state):
        x, bad = state
        pivot = x[..., k, k].real
        bad = jnp.where((bad == 0) & ~(pivot > 0), k + 1, bad)
        column = jnp.where(jnp.arange(x.shape[-1]) > k, x[..., :, k], 0)
        outer = column[..., :, None] * jnp.conj(column[..., None, :])
        return x - outer / pivot[..., None, None], bad

    start = x, jnp.zeros(x.shape[:-2], jnp.int32)
    return jax.lax.fori_loop(0, x.shape[-1], eliminate, start)[1].astype(jnp.int32)


@differentiated_as(lambda x, lower: (x + adjoint(x)) / 2)
def hermitian_of(x: jax.Array, lower: bool) -> jax.Array:
    """Return the Hermitian matrix of which ``x`` holds one triangle."""
    half = jnp.tril(x, -1) if lower else jnp.triu(x, 1)
    diagonal = jnp.eye(x.shape[-1], dtype=x.dtype) * jnp.real(x)
    return half + adjoint(half) + diagonal


@op("linalg_cholesky_ex", concrete=raises)
def linalg_cholesky_ex(self, *, upper=False, check_errors=False):
    """Give NaN for a matrix that is not positive-definite, where LAPACK stops half way."""
    x = hermitian_of(self, lower=not upper)
    if x.size == 0:
        return x, jnp.zeros(x.shape[:-2], jnp.int32)
    factor = lax_linalg.cholesky(x, symmetrize_input=False)
    failed = jnp.isnan(jnp.diagonal(factor, axis1=-2, axis2=-1)).any(-1)
    order = jax.lax.cond(
        failed.any(), _first_bad_minor, lambda x: jnp.zeros(x.shape[:-2], jnp.int32), x
    )
    info = jnp.where(failed, jnp.where(order == 0, x.shape[-1], order), 0)
    raised(info, "linalg.cholesky", check_errors)
    return adjoint(factor) if upper else factor, info.astype(jnp.int32)


@op("cholesky", concrete=True)
def cholesky(self, upper=False):
    factor, info = linalg_cholesky_ex(self, upper=upper)
    raised(info, "cholesky")
    return factor


# QR


@op("linalg_qr")
def linalg_qr(A, mode="reduced"):
    if mode == "r":
        return nothing(A), jnp.linalg.qr(A, mode="r")
    return lax_linalg.qr(A, full_matrices=mode == "complete")


@op("geqrf", meta=False)
def geqrf(self):
    """Return the reflectors below the diagonal, as LAPACK does, and their scales."""
    if self.ndim < 2:
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions.")
    h, tau = jnp.linalg.qr(self, mode="raw")
    return column_major(h.mT), tau


@op("linalg_householder_product")
def linalg_householder_product(input, tau):
    if input.size == 0 or tau.size == 0:
        rows, columns = input.shape[-2:]
        return jnp.broadcast_to(jnp.eye(rows, columns, dtype=input.dtype), input.shape)
    return lax_linalg.householder_product(input, tau)


@op("ormqr")
def ormqr(self, input2, input3, left=True, transpose=False):
    if input3.size == 0 or input2.size == 0:
        return input3
    return lax_linalg.ormqr(self, input2, input3, left=left, transpose=transpose)


# Eigenvalues and singular values. Where LAPACK reports no convergence, these are NaN.


@op("_linalg_eigh")
def linalg_eigh(A, UPLO="L", compute_v=True):
    """Read one triangle, and of the diagonal the real part."""
    if A.size == 0:
        w = jnp.zeros(A.shape[:-1], np.finfo(A.dtype).dtype)
        return w, A if compute_v else nothing(A)
    x = hermitian_of(A, lower=UPLO.upper() == "L")
    if not compute_v:
        return jnp.linalg.eigvalsh(x, symmetrize_input=False), nothing(A)
    v, w = lax_linalg.eigh(x, symmetrize_input=False)
    return w, v


@op("linalg_matrix_sqrth")
def linalg_matrix_sqrth(self):
    """Return the square root of a matrix of which the lower triangle counts; from torch 2.14 on."""
    values, vectors = linalg_eigh(self)
    return (vectors * jnp.sqrt(values)[..., None, :]) @ vectors.mT.conj()


def _eig(x: jax.Array, vectors: bool) -> list[jax.Array]:
    """Compute on the host where JAX has no kernel, as on TPU."""
    dtype = np.result_type(x.dtype, np.complex64)
    shapes = [x.shape[:-1], x.shape][: 1 + vectors]
    if x.size == 0:
        return [jnp.zeros(shape, dtype) for shape in shapes]
    if target.platform() in ("cpu", "gpu"):
        return lax_linalg.eig(
            x, compute_left_eigenvectors=False, compute_right_eigenvectors=vectors
        )

    def by_numpy(x):
        results = np.linalg.eig(x) if vectors else [np.linalg.eigvals(x)]
        return [np.asarray(r, dtype) for r in results]

    forms = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return jax.pure_callback(by_numpy, forms, x, vmap_method="broadcast_all")


@op("linalg_eig")
def linalg_eig(self):
    values, vectors = _eig(self, vectors=True)
    return values, vectors if self.size == 0 else column_major(vectors)


op("_linalg_eigvals")(lambda self: _eig(self, vectors=False)[0])


def svd(x: jax.Array, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return JAX's singular value decomposition, or the values alone.

    With integers of 64 bits in its loops, the compiler of TPUs ends the process (libtpu 0.0.42).
    """
    options: dict[str, Any] = {"full_matrices": full_matrices, "compute_uv": compute_uv}
    decompose = target.svd_of_tpus()
    if decompose is None or x.size == 0:
        return lax_linalg.svd(x, **options)
    with jax.enable_x64(False):
        s, *vectors = decompose(x, subset_by_index=None, **options)
    return (vectors[0], s, vectors[1]) if compute_uv else s


@op("_linalg_svd")
def linalg_svd(A, full_matrices=False, compute_uv=True, *, driver=None):
    if not compute_uv:
        return nothing(A), svd(A, compute_uv=False), nothing(A)
    u, s, vh = svd(A, full_matrices=full_matrices)
    return u, s, column_major(vh)


# Vectors


@op("linalg_cross")
def linalg_cross(self, other, *, dim=-1):
    a, b = jnp.broadcast_arrays(*promote(self, other))
    return jnp.cross(a, b, axis=dim)
