"""Linear systems: triangular, by LU, by Cholesky, and least squares."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.lax import linalg as lax_linalg

from torch_jax.ops.derivatives import differentiated_as
from torch_jax.ops.linalg import adjoint as adjoint_of
from torch_jax.ops.linalg import lu_factor, nothing, raised, raises, svd
from torch_jax.ops.on_host import on_host
from torch_jax.ops.promotion import convert
from torch_jax.ops.registry import column_major, op

# a setting of PyTorch's for products concerns no solvers
_product = functools.partial(jnp.matmul, precision="highest")


def batched(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two stacks of matrices, their batch dimensions broadcast to each other."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (
        jnp.broadcast_to(a, (*batch, *a.shape[-2:])),
        jnp.broadcast_to(b, (*batch, *b.shape[-2:])),
    )


def _is_vector(a: jax.Array, b: jax.Array) -> bool:
    """Return whether ``b`` is a stack of vectors, not of matrices."""
    return b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])


def triangular(a, b, *, upper, left=True, unit=False, transpose=False, conjugate=False):
    """Solve ``op(a) @ x = b``, or ``x @ op(a) = b`` where not ``left``."""
    a, b = batched(a, b)
    if b.size == 0:
        return b
    return lax_linalg.triangular_solve(
        a,
        b,
        left_side=left,
        lower=not upper,
        transpose_a=transpose,
        conjugate_a=conjugate,
        unit_diagonal=unit,
    )


@op("linalg_solve_triangular")
def linalg_solve_triangular(self, B, *, upper, left=True, unitriangular=False):
    b = convert(B, self.dtype)  # as PyTorch's kernel: under autocast the dtypes may differ
    return triangular(self, b, upper=upper, left=left, unit=unitriangular)


@op("triangular_solve")
def triangular_solve(self, A, upper=True, transpose=False, unitriangular=False):
    a, b = batched(A, self)
    return triangular(a, b, upper=upper, unit=unitriangular, transpose=transpose), a


# LU


@op("linalg_lu_solve")
def linalg_lu_solve(LU, pivots, B, *, left=True, adjoint=False):
    lu, b = batched(LU, B if left else adjoint_of(B))
    pivots = jnp.broadcast_to(pivots, lu.shape[:-1])
    x = jax.scipy.linalg.lu_solve((lu, pivots - 1), b, trans=2 if adjoint == left else 0)
    return x if left else adjoint_of(x)


@op("_linalg_solve_ex", concrete=raises)
def linalg_solve_ex(A, B, *, left=True, check_errors=False):
    lu, pivots, info = lu_factor(A)
    raised(info, "torch.linalg.solve_ex", check_errors)
    vector = _is_vector(A, B)
    b = B[..., None] if vector else B
    x = linalg_lu_solve(lu, pivots, b, left=left)
    return x[..., 0] if vector else x, lu, pivots, info


@op("linalg_inv_ex", concrete=raises)
def linalg_inv_ex(A, *, check_errors=False):
    lu, pivots, info = lu_factor(A)
    raised(info, "linalg.inv_ex", check_errors)
    return linalg_lu_solve(lu, pivots, jnp.eye(A.shape[-1], dtype=A.dtype)), info


# Cholesky


def _solve_with_whole_factor(self, A, upper):
    return jnp.linalg.solve(adjoint_of(A) @ A if upper else A @ adjoint_of(A), self)


@op("_cholesky_solve_helper")
@differentiated_as(_solve_with_whole_factor)
def cholesky_solve(self, A, upper):
    first = triangular(A, self, upper=upper, transpose=upper, conjugate=upper)
    return triangular(A, first, upper=upper, transpose=not upper, conjugate=not upper)


@op("cholesky_inverse")
def cholesky_inverse(self, upper=False):
    return cholesky_solve(jnp.eye(self.shape[-1], dtype=self.dtype), self, upper)


# Least squares


_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


def _check_lstsq(a, b, driver: str) -> None:
    """Raise for arguments that PyTorch refuses; its meta function does not exist."""
    rows = b.shape[-1:] if _is_vector(a, b) else b.shape[-2:-1]
    have_dims = a.ndim >= 2 and b.ndim >= 1
    if not have_dims or a.dtype != b.dtype or rows != a.shape[-2:-1] or driver not in _DRIVERS:
        raise RuntimeError(f"torch.linalg.lstsq of {a.aval} and {b.aval} by {driver!r}")


def _reads_rank(driver=None):
    """Return whether residuals need the rank: some drivers give them for full rank only."""
    return driver in ("gelss", "gelsd")


@op("linalg_lstsq", static=("rcond",), concrete=_reads_rank, meta=False)
def linalg_lstsq(self, b, rcond=None, *, driver=None):
    """Solve by the singular values for all drivers, which differ in their other results."""
    driver = driver or "gelsy"
    _check_lstsq(self, b, driver)
    m, n = self.shape[-2:]
    vector = _is_vector(self, b)
    a, rhs = batched(self, b[..., None] if vector else b)
    if rcond is None:
        rcond = float(jnp.finfo(self.dtype).eps) * max(m, n)
    u, s, vh = svd(a, full_matrices=False)
    tolerance = 0 if driver == "gels" else rcond * jnp.max(s, axis=-1, keepdims=True, initial=0)
    used = s > tolerance
    inverse = jnp.where(used, 1 / jnp.where(used, s, 1), 0)[..., None]
    x = _product(adjoint_of(vh), inverse * _product(adjoint_of(u), rhs))
    rank = jnp.sum(used, axis=-1)
    none = nothing(s)
    residuals = none
    full_rank = driver == "gels" or (_reads_rank(driver) and bool(on_host(jnp.all(rank == n))))
    if m > n and full_rank:
        residuals = jnp.sum(jnp.square(jnp.abs(_product(a, x) - rhs)), axis=-2)
    return (
        x[..., 0] if vector else column_major(x),
        residuals,
        none.astype(jnp.int64) if driver == "gels" else rank,
        s if _reads_rank(driver) else none,
    )
