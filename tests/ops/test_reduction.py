"""Reductions, norms, scans and distances against the CPU."""

import itertools
import math

import pytest
import torch

import torch_jax
from tests.support.compare import check, check_raises
from tests.support.values import SPECIAL, make

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64, torch.bfloat16]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]
DIMS = [0, -1, (0, 2), [1]]


def named(functions):
    return pytest.mark.parametrize("f", functions, ids=lambda f: f.__name__)


@named([torch.sum, torch.nansum])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
@pytest.mark.slow
def test_sums(f, dtype):
    if f is torch.nansum and dtype.is_complex:
        return check_raises(f, make(dtype, 3))
    x = make(dtype, 3, 4, 5, grad=dtype.is_floating_point)
    check(f, x)
    for dim, keepdim in itertools.product(DIMS, (False, True)):
        check(lambda x, dim=dim, keepdim=keepdim: f(x, dim, keepdim), x)
    check(lambda x: f(x, (), True), x)
    check(lambda x: f(x, 0, dtype=torch.float64), x)
    return check(lambda x: f(x, 1, dtype=torch.int32), x.detach())


def test_a_wide_sum_over_leading_dims_is_a_product():
    x = make(torch.float32, 3, 2, 5, 1639, grad=True)
    check(lambda x: x.sum((0, 1)), x)
    check(lambda x: x.mean(0, keepdim=True), x)
    wide = torch_jax.jit(lambda x: x.sum(0)).lower(torch.ones(2, 8193, device="jax"))
    assert "dot_general" in wide.as_text()


@pytest.mark.parametrize("dtype", DTYPES)
def test_products(dtype):
    x = make(dtype, 3, 4, grad=dtype.is_floating_point)
    check(torch.prod, x)
    check(lambda x: torch.prod(x, 1), x)
    check(lambda x: torch.prod(x, -1, True, dtype=torch.float32), x)
    check(lambda x: torch.prod(x, 0), x[:0])


@named([torch.mean, torch.nanmean])
@pytest.mark.slow
def test_means(f):
    for dtype in FLOATS[: 3 if f is torch.nanmean else 4]:
        x = make(dtype, 3, 4, 5, grad=True)
        check(f, x)
        for dim in DIMS:
            check(lambda x, dim=dim: f(x, dim, keepdim=True), x)
    check(f, SPECIAL)
    check(f, torch.empty(0))
    check(lambda x: f(x, 1), torch.empty(2, 0))
    check_raises(torch.mean, make(torch.int64, 3))
    check(lambda x: torch.mean(x, dtype=torch.float32), make(torch.int64, 3))


def test_the_mean_of_ones_is_one():
    for n in (41, 47, 55, 61):
        assert torch.ones(n, device="jax").mean().item() == 1


@pytest.mark.slow
@named([torch.var, torch.std, torch.var_mean, torch.std_mean])
@pytest.mark.parametrize("dtype", FLOATS)
def test_moments(f, dtype):
    x = make(dtype, 3, 4, 5, grad=True)
    for dim, correction in itertools.product((None, 0, (0, 2)), (0, 1, 2)):
        check(lambda x, d=dim, c=correction: tuple_of(f(x, d, correction=c, keepdim=True)), x)
    check(lambda x: tuple_of(f(x, 1)), x)
    check(lambda x: tuple_of(f(x, False)), x)


@named([torch.var, torch.std])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_moments_of_few(f):
    check(f, torch.ones(1))
    check(f, torch.empty(0))
    check(lambda x: f(x, 0, correction=3), torch.randn(2, 3))
    check(f, torch.tensor(2.0))


def tuple_of(x):
    return tuple(x) if isinstance(x, tuple) else x


@pytest.mark.slow
@named([torch.amax, torch.amin, torch.max, torch.min, torch.argmax, torch.argmin])
@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes(f, dtype):
    if f in (torch.argmax, torch.argmin) and dtype == torch.bool:
        return  # the CPU has none
    x = make(dtype, 3, 4, 5, grad=dtype.is_floating_point)
    check(f, x)
    for dim, keepdim in itertools.product((0, 1, -1), (False, True)):
        check(lambda x, d=dim, k=keepdim: tuple_of(f(x, dim=d, keepdim=k)), x)
    check(lambda x: tuple_of(f(x, dim=0)), x.detach()[0, 0, 0])
    check(lambda x: tuple_of(f(x.transpose(0, 1), dim=1)), x)


@named([torch.amax, torch.amin])
def test_extremes_over_dims_share_the_gradient_of_ties(f):
    x = torch.tensor([[1.0, 3, 3], [3, 0, 1]], requires_grad=True)
    check(f, x)
    check(lambda x: f(x, (0, 1), True), x)
    check(lambda x: f(x, 1), x)
    check_raises(lambda x: f(x, 0), torch.empty(0, 3))


@named([torch.max, torch.min, torch.argmax, torch.argmin, torch.aminmax])
def test_extremes_of_nan(f):
    x = torch.tensor([[1.0, math.nan, 2, math.nan], [1, 2, 2, 0], [-math.inf, 1, math.inf, 1]])
    check(lambda x: tuple_of(f(x)), x)
    check(lambda x: tuple_of(f(x, dim=1)), x)
    check_raises(lambda x: f(x, dim=2), x)
    check_raises(f, torch.empty(0))
    if f is not torch.aminmax:
        check_raises(lambda x: f(x, dim=1), torch.empty(2, 0))


def test_aminmax():
    check(lambda x: tuple(torch.aminmax(x)), make(torch.float32, 3, 4, grad=True))
    check(lambda x: tuple(torch.aminmax(x, dim=1, keepdim=True)), make(torch.int64, 3, 4))


@pytest.mark.slow
@named([torch.any, torch.all])
def test_any_all(f):
    for dtype in DTYPES:
        x = make(dtype, 3, 4, 5)
        check(f, x)
        check(lambda x: f(x, 1), x)
        check(lambda x: f(x, (0, 2), keepdim=True), x)
        check(f, x[:0])
    check(f, SPECIAL)


def test_count_nonzero():
    for dim in (None, 0, (0, 1)):
        check(lambda x, d=dim: torch.count_nonzero(x, d), make(torch.int64, 3, 4))
    check(torch.count_nonzero, SPECIAL)


ORDERS = [0, 1, 2, 3, 0.5, -1, math.inf, -math.inf]


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_norms(order):
    for dtype in FLOATS:
        x = make(dtype, 3, 4, 5, grad=order not in (0.5, -1) or dtype != torch.bfloat16)
        check(lambda x: torch.linalg.vector_norm(x, order), x)
        check(lambda x: torch.linalg.vector_norm(x, order, (0, 2), True), x)
        check(lambda x: torch.norm(x, order, 1), x)
    check(lambda x: torch.linalg.vector_norm(x, order, dtype=torch.float64), make(FLOATS[0], 3))
    check(lambda x: torch.linalg.vector_norm(x, order, 1), torch.zeros(2, 3, requires_grad=True))


@pytest.mark.slow
def test_other_norms():
    x = make(torch.float32, 3, 4, grad=True)
    check(torch.norm, x)
    check(lambda x: torch.linalg.norm(x, "fro"), x)
    check(lambda x: torch.nn.functional.normalize(x, dim=1), x)
    check(lambda x: torch.renorm(x, 2, 0, 1.5), x)
    check(lambda x: torch.renorm(x, 1, -1, 3), x)
    check(lambda a, b: torch.dist(a, b, 3), x, x.detach() + 1)
    check(lambda x: torch.linalg.vector_norm(x, 2, 1), torch.empty(2, 0))
    check_raises(lambda x: torch.linalg.vector_norm(x, math.inf), torch.empty(0))
    check(lambda x: torch.nn.utils.get_total_norm([x, x[0]]), x.detach())
    check(torch.cosine_similarity, x, x.detach() + 1)


@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
def test_logsumexp(dim):
    check(lambda x: torch.logsumexp(x, dim), make(torch.float32, 3, 4, grad=True))
    check(lambda x: torch.logsumexp(x, dim, True), make(torch.bfloat16, 3, 4))
    check(lambda x: torch.logsumexp(x, dim), make(torch.int64, 3, 4))
    check(lambda x: torch.logsumexp(x, dim), torch.full((3, 4), -math.inf))
    check(lambda x: torch.logsumexp(x, dim), torch.empty(0, 0))


@pytest.mark.slow
def test_trace_cov_diff():
    check(torch.trace, make(torch.float32, 3, 4, grad=True))
    check(torch.trace, make(torch.int32, 3, 4))
    check(torch.cov, make(torch.float32, 3, 8, grad=True))
    check(torch.corrcoef, make(torch.float32, 3, 8))
    check(torch.diff, make(torch.int64, 3, 4))
    check(lambda x: torch.diff(x, 2, 0), make(torch.float32, 3, 4, grad=True))


@named([torch.cumsum, torch.cumprod])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_running(f, dtype):
    x = make(dtype, 3, 4, grad=dtype.is_floating_point)
    for dim in (0, -1):
        check(lambda x, d=dim: f(x, d), x)
    check(lambda x: f(x, 0, dtype=torch.float64), x)
    check(lambda x: f(x, 0), x.detach()[0, 0])
    check(lambda x: f(x, 1), x.detach()[:, :0])
    check(lambda x: f(x.t(), 1), x.detach())


@named([torch.cummax, torch.cummin])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_running_extremes(f, dtype):
    for dim in (0, 1):
        check(lambda x, d=dim: tuple(f(x, d)), make(dtype, 6, 5, grad=dtype == torch.float32))
    check(lambda x: tuple(f(x, 0)), SPECIAL)
    check(lambda x: tuple(f(x, 0)), torch.tensor(3))
    check(lambda x: tuple(f(x, 0)), torch.empty(0, 2))
    ties = torch.randint(3, (2, 50)).to(dtype)
    check(lambda x: tuple(f(x, 1)), ties)


@pytest.mark.slow
def test_logcumsumexp():
    check(lambda x: torch.logcumsumexp(x, 1), make(torch.float32, 3, 6, grad=True))
    check(lambda x: torch.logcumsumexp(x, 0), SPECIAL[:10])
    check(lambda x: torch.logcumsumexp(x, 0), make(torch.complex64, 5))
    check(lambda x: torch.logcumsumexp(x, 1), make(torch.float32, 2, 50, grad=True))


@named([torch.cummax, torch.logcumsumexp])
def test_running_results_are_compiled_as_loops(f):
    step = torch_jax.jit(lambda x: f(x, 0), pure=True)
    short, long = (step.lower(torch.ones(n, device="jax")).as_text() for n in (50, 5000))
    assert short.count("\n") == long.count("\n")


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 3, math.inf])
def test_distances(p):
    x, y = make(torch.float32, 2, 5, 3, grad=True), make(torch.float32, 4, 3, grad=True)
    check(lambda x, y: torch.cdist(x, y, p), x, y)
    check(lambda x: torch.cdist(x, x, p), x.detach())
    check(lambda x: torch.pdist(x, p), y)
    check(lambda x, y: torch.cdist(x, y, p), x[:, :0], y)


def test_many_distances_by_one_product():
    x, y = make(torch.float32, 40, 3, grad=True), make(torch.float32, 30, 3, grad=True) + 9
    check(torch.cdist, x, y, scale=4)


@named([torch.sum, torch.mean, torch.amax])
def test_out(f):
    x = make(torch.float32, 3, 4)
    check(lambda x, out: f(x, 1, out=out), x, torch.empty(0))
    check(lambda x, out: f(x, (0, 1), out=out), x, torch.empty(()))
    check(lambda x, out, i: torch.max(x, 1, out=(out, i))[0], x, torch.empty(3), torch.arange(3))
    check(lambda x: x.cumsum_(0), x)


@named([torch.amax, torch.amin, torch.aminmax, torch.linalg.vector_norm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_wins_where_a_library_reduces(f, dtype):
    x = make(dtype, 64, 128)
    x[3, 5] = math.nan
    for dim in (0, 1) if f is torch.aminmax else (0, 1, (0, 1)):
        if f is torch.linalg.vector_norm:
            check(lambda x, dim=dim: f(x, math.inf, dim), x)
            check(lambda x, dim=dim: f(x, -math.inf, dim), x)
        else:
            check(lambda x, dim=dim: f(x, dim=dim), x)
