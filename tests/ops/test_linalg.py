"""Linear algebra: decompositions by their products, solutions and functions by value."""

import pytest
import torch

from tests.support.compare import check, check_raises

L = torch.linalg
DTYPES = [torch.float32, torch.complex128]
SHAPES = [(2, 3, 3), (2, 0, 0)]
TALL_AND_WIDE = [(4, 2), (2, 3, 4), (3, 0)]


def matrix(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()


def invertible(*shape, dtype=torch.float32, seed=0):
    a = matrix(*shape, dtype=dtype, seed=seed).detach()
    return (a + 3 * torch.eye(shape[-1], dtype=dtype)).requires_grad_()


def positive(*shape, dtype=torch.float32):
    a = matrix(*shape, dtype=dtype).detach()
    return (a @ a.mH + torch.eye(shape[-1], dtype=dtype)).requires_grad_()


def same(function, *args, **options):
    check(function, *args, **options)


dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)
rectangles = pytest.mark.parametrize("shape", TALL_AND_WIDE, ids=str)


@dtypes
@shapes
@pytest.mark.slow
def test_determinants_and_inverses(shape, dtype):
    a = invertible(*shape, dtype=dtype)
    for function in (L.det, L.inv, L.slogdet, lambda a: L.inv_ex(a)[0]):
        same(function, a)
        # PyTorch factors a contiguous matrix transposed, and its gradient must know
        same(lambda a, f=function: f(a.mT), a)


@dtypes
@shapes
@pytest.mark.slow
def test_solve(shape, dtype):
    a, b = invertible(*shape, dtype=dtype), matrix(*shape, dtype=dtype, seed=1)
    for left in (True, False):
        same(L.solve, a, b, left=left)
        same(lambda a, b, left=left: L.solve(a.mT, b.mT, left=left), a, b)
    if shape[-1]:
        same(lambda a, b: L.solve(a, b[..., 0]), a, b)
    same(lambda a, b: L.solve_ex(a, b).result, a, b)


@pytest.mark.slow
def test_solve_broadcasts():
    a = invertible(2, 1, 3, 3)
    same(L.solve, a, matrix(4, 3, 2))
    same(lambda a, b: L.lu_solve(*L.lu_factor(a), b), a, matrix(4, 3, 2))
    same(L.solve_triangular, a, matrix(4, 3, 2), upper=True)
    same(torch.cholesky_solve, matrix(4, 3, 2), positive(2, 1, 3, 3))


@pytest.mark.slow
@dtypes
@rectangles
def test_lu(shape, dtype):
    a = matrix(*shape, dtype=dtype)
    same(L.lu, a)
    same(lambda a: L.lu_factor(a)[0], a)
    same(lambda a: L.lu_factor_ex(a)[1:], a.detach())
    same(lambda a: torch.lu_unpack(*L.lu_factor(a)), a)
    for data, pivots in ((True, False), (False, True)):
        same(lambda a, d=data, p=pivots: torch.lu_unpack(*L.lu_factor(a), d, p), a.detach())


@dtypes
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_lu_solve(left, adjoint, dtype):
    a, b = invertible(2, 3, 3, dtype=dtype), matrix(2, 3, 3, dtype=dtype, seed=1)
    same(lambda a, b: L.lu_solve(*L.lu_factor(a), b, left=left, adjoint=adjoint), a, b)


@dtypes
@pytest.mark.parametrize("upper", [False, True])
@shapes
def test_cholesky(shape, upper, dtype):
    a, b = positive(*shape, dtype=dtype), matrix(*shape, dtype=dtype, seed=1)
    same(L.cholesky, a, upper=upper)
    same(L.cholesky_ex, a, upper=upper)
    factor = L.cholesky(a.detach(), upper=upper).requires_grad_()
    same(torch.cholesky_solve, b, factor, upper=upper)
    same(torch.cholesky_inverse, factor, upper=upper)


def test_cholesky_reads_one_triangle():
    a = positive(3, 3).detach()
    same(L.cholesky, a + torch.ones(3, 3).triu(1))
    same(L.cholesky, a + torch.ones(3, 3).tril(-1), upper=True)
    same(L.eigvalsh, a + torch.ones(3, 3).triu(1), UPLO="L")
    same(L.eigvalsh, a + torch.ones(3, 3).tril(-1), UPLO="U")


@pytest.mark.slow
def test_where_a_factorization_failed():
    a = torch.stack([torch.eye(4), torch.diag(torch.tensor([1.0, 1.0, -1.0, 1.0])), -torch.eye(4)])
    same(lambda a: L.cholesky_ex(a).info, a)
    b = torch.stack([torch.eye(4), torch.diag(torch.tensor([1.0, 0.0, 1.0, 0.0])), 0 * a[0]])
    same(lambda a: L.lu_factor_ex(a).info, b)
    same(lambda a: L.inv_ex(a).info, b)
    same(L.det, b)
    same(L.slogdet, b)


@dtypes
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_triangular(left, upper, dtype):
    a, b = invertible(2, 3, 3, dtype=dtype), matrix(2, 3, 3, dtype=dtype, seed=1)
    for unit in (False, True):
        same(L.solve_triangular, a, b, upper=upper, left=left, unitriangular=unit)
        same(torch.triangular_solve, b, a, upper, left, unit)
    same(L.solve_triangular, a, matrix(2, 3, 0, dtype=dtype), upper=upper)


# Decompositions are unique up to signs or phases, which the products below do not see.


@dtypes
@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.slow
def test_indefinite(hermitian, dtype):
    a = matrix(2, 6, 6, dtype=dtype).detach()
    a.diagonal(dim1=-2, dim2=-1)[:, ::2] = 0  # asks for blocks of two
    a = a + (a.mH if hermitian else a.mT)
    factor, pivots, _ = L.ldl_factor_ex(a, hermitian=hermitian)
    assert (pivots < 0).any()
    same(L.ldl_factor_ex, a, hermitian=hermitian)
    same(L.ldl_factor, torch.ones(1, 1, dtype=dtype), hermitian=hermitian)
    same(L.ldl_solve, factor, pivots, matrix(2, 6, 1, dtype=dtype).detach(), hermitian=hermitian)
    same(L.ldl_factor_ex, torch.zeros(2, 3, 3, dtype=dtype), hermitian=hermitian)
    same(L.ldl_factor_ex, torch.zeros(2, 0, 0, dtype=dtype), hermitian=hermitian)


@dtypes
@rectangles
@pytest.mark.slow
def test_qr(shape, dtype):
    a = matrix(*shape, dtype=dtype)

    def invariants(a, mode="reduced"):
        q, r = L.qr(a, mode)
        return q @ r, q.mH @ q, r.abs()

    same(invariants, a, grad=shape[-2] > 0 and shape[-1] > 0)
    same(lambda a: invariants(a, "complete"), a, grad=False)
    same(lambda a: [t.abs() for t in L.qr(a, "r")], a.detach())


@dtypes
@pytest.mark.slow
def test_reflectors(dtype):
    a, other = matrix(4, 3, dtype=dtype).detach(), matrix(4, 4, dtype=dtype).detach()
    reflectors, scales = torch.geqrf(a)
    same(torch.geqrf, a)
    same(L.householder_product, reflectors.requires_grad_(), scales.requires_grad_())
    for left in (True, False):
        for transpose in (True, False):
            same(torch.ormqr, reflectors, scales, other, left, transpose, grad=False)


@pytest.mark.slow
@dtypes
@shapes
def test_eigh(shape, dtype):
    a = positive(*shape, dtype=dtype)

    def invariants(a):
        w, v = L.eigh(a)
        return w, (v * w[..., None, :].exp()) @ v.mH, v.mH @ v

    same(invariants, a)
    same(L.eigvalsh, a)


@dtypes
@shapes
@pytest.mark.slow
def test_eig(shape, dtype):
    a = matrix(*shape, dtype=dtype)

    def invariants(a):
        w, v = L.eig(a)
        return (v * w[..., None, :].exp()) @ L.inv(v)

    same(invariants, a)
    same(lambda a: L.eigvals(a).abs().sort().values, a.detach())
    same(lambda a: L.eigvals(a).square().sum(), a)


@pytest.mark.slow
@dtypes
@rectangles
def test_svd(shape, dtype):
    a = matrix(*shape, dtype=dtype)

    def invariants(a, full=False):
        u, s, vh = L.svd(a, full_matrices=full)
        k = s.shape[-1]
        rebuilt = (u[..., :k] * s[..., None, :] ** 2) @ vh[..., :k, :]
        return rebuilt, s, u[..., :k] @ vh[..., :k, :], u.mH @ u, vh @ vh.mH

    same(invariants, a)
    same(lambda a: invariants(a, True), a, grad=False)
    same(L.svdvals, a)


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("driver", [None, "gels", "gelsd", "gelss", "gelsy"])
def test_least_squares(driver, dtype):
    for shape in ((5, 3), (3, 5), (2, 5, 3), (3, 3)):
        a = matrix(*shape, dtype=dtype).detach()
        b = matrix(*shape[:-1], 2, dtype=dtype, seed=1).detach()
        same(L.lstsq, a, b, driver=driver, strides=False)  # the CPU's are views of taller matrices
    a, b = matrix(5, 3, dtype=dtype), matrix(5, 2, dtype=dtype)
    same(lambda a, b: L.lstsq(a, b).solution, a, b, strides=False)
    a, b = matrix(2, 5, 3, dtype=dtype).detach(), matrix(2, 5, dtype=dtype).detach()
    same(L.lstsq, a, b, strides=False)


@pytest.mark.slow
def test_least_squares_without_full_rank():
    a = matrix(5, 1).detach() @ matrix(1, 3).detach()
    for driver in ("gelsd", "gelss", "gelsy"):
        same(
            lambda a, b, d=driver: L.lstsq(a, b, rcond=1e-3, driver=d)[:3],
            a,
            matrix(5, 2).detach(),
            strides=False,  # the CPU's solution is a view of a taller matrix
        )


@pytest.mark.slow
@dtypes
def test_functions_of_matrices(dtype):
    a = invertible(2, 3, 3, dtype=dtype)
    for function in (L.matrix_exp, L.pinv, L.cond, L.matrix_norm, torch.logdet):
        if function is torch.logdet:
            same(function, positive(2, 3, 3, dtype=dtype))
        else:
            same(function, a)
    for power in (-2, 0, 3):
        same(L.matrix_power, a, power)
    for order in ("fro", "nuc", 2, -2, 1, float("inf")):
        same(L.matrix_norm, a, order)
    same(L.matrix_rank, matrix(4, 2, dtype=dtype).detach() @ matrix(2, 4, dtype=dtype).detach())
    same(L.pinv, positive(3, 3, dtype=dtype), hermitian=True)
    same(L.multi_dot, [a[0], a[1], a[0]])


@pytest.mark.slow
def test_exponentials_of_all_sizes():
    a = matrix(3, 3, dtype=torch.float64).detach()
    for size in (0.0, 1e-3, 1.0, 30.0):
        # as a share of the largest element, which may be e^60
        same(lambda a, size=size: (e := L.matrix_exp(size * a)) / e.abs().max(), a)
        same(L.matrix_exp, -size * (a @ a.mT))
    same(L.matrix_exp, torch.zeros(0, 2, 2))
    same(L.matrix_exp, torch.tensor([[-1e6]]))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16, torch.int64], ids=str)
def test_cross(dtype):
    a = (2 * torch.randn(4, 3)).to(dtype)  # a row times itself leaves the rounding of products
    check(L.cross, a, a.flip(0))
    check(L.cross, a.mT, a.mT.flip(0), dim=0)
    check(L.cross, a, a[:1])
    check(torch.cross, a, a.flip(1), 1)


def test_out():
    def into(a):
        out = torch.empty(3, 3, device=a.device)
        return L.inv(a, out=out), L.det(a, out=torch.empty((), device=a.device)), out

    same(into, invertible(3, 3).detach())


@pytest.mark.slow
def test_errors():
    singular = torch.zeros(3, 3)
    for function in (L.inv, L.cholesky, L.lu_factor, lambda a: L.solve(a, a), torch.cholesky):
        check_raises(function, singular)
        check_raises(function, singular.expand(2, 3, 3))
    check_raises(L.inv_ex, singular, check_errors=True)
    check_raises(L.inv, torch.ones(3, 2))
    check_raises(L.qr, torch.ones(3, 2), "other")
    check_raises(L.eigh, torch.ones(3, 3), UPLO="X")
    check_raises(L.cross, torch.ones(3, 2), torch.ones(3, 2))
    check_raises(L.solve, torch.eye(3), torch.ones(4, 1))
    check_raises(L.cholesky, torch.eye(3).half())
    check_raises(L.lstsq, torch.ones(3, 2), torch.ones(3, 1), driver="gelx")
    check_raises(L.lstsq, torch.ones(3, 2), torch.ones(4, 1))
    check_raises(L.lstsq, torch.ones(3), torch.ones(3))
    check_raises(L.lstsq, torch.ones(3, 2), torch.ones(3, 2).double())
    check_raises(torch.geqrf, torch.ones(3))
    check_raises(L.ldl_factor, torch.zeros(3, 3))
    check_raises(
        L.ldl_solve, torch.eye(3), torch.tensor([1, 2, 3], dtype=torch.int32), torch.ones(4)
    )


def test_errors_say_what_the_cpu_says():
    for function, a in (
        (L.cholesky, -torch.eye(3)),
        (L.inv, torch.stack([torch.eye(2), torch.zeros(2, 2)])),
        (lambda a: L.solve(a, a), torch.zeros(2, 2)),
        (L.lu_factor, torch.zeros(2, 2)),
    ):
        with pytest.raises(RuntimeError) as expected:
            function(a)
        with pytest.raises(RuntimeError) as actual:
            function(a.to("jax"))
        assert str(actual.value).startswith(str(expected.value))
