"""Matrix products against the CPU."""

import pytest
import torch

from tests.support.compare import check, check_raises

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.int32]


def make(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if dtype.is_floating_point or dtype.is_complex:
        return x.to(dtype).requires_grad_(True)
    return (x * 5).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (2, 4, 5))]
    + [((2, 1, 3, 4), (5, 4, 2)), ((0, 4), (4, 5)), ((3, 0), (0, 5))],
)
def test_matmul(dtype, a, b):
    check(torch.matmul, make(*a, dtype=dtype), make(*b, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (2, 3), (0, 1)])
def test_with_an_addend(dtype, beta, alpha):
    a, b, v = make(3, 4, dtype=dtype), make(4, 5, dtype=dtype), make(4, dtype=dtype)
    factors = {"beta": beta, "alpha": alpha}
    check(torch.addmm, make(3, 5, dtype=dtype), a, b, **factors)
    check(torch.addmm, make(5, dtype=dtype), a, b, **factors)
    check(torch.addmv, make(3, dtype=dtype), a, v, **factors)
    check(torch.addr, make(3, 4, dtype=dtype), make(3, dtype=dtype), v, **factors)
    batches = make(2, 3, 4, dtype=dtype), make(2, 4, 5, dtype=dtype)
    check(torch.baddbmm, make(2, 3, 5, dtype=dtype), *batches, **factors)
    # PyTorch rounds half types after each of the batch's products
    scale = 4.0 if dtype == torch.bfloat16 else 1.0
    check(torch.addbmm, make(3, 5, dtype=dtype), *batches, scale=scale, **factors)


def test_beta_of_zero_ignores_nan_and_integers_truncate_factors():
    nan = torch.full((3, 5), torch.nan)
    check(torch.addmm, nan, make(3, 4).detach(), make(4, 5).detach(), beta=0)
    ints = (make(3, 5, dtype=torch.int64), make(5, 4, dtype=torch.int64))
    check(torch.addmv, ints[0][:, 0], ints[0], ints[1][:, 0], beta=0.6, alpha=2.7)


def test_in_place_out_and_views():
    a, b = make(3, 4).detach(), make(5, 4).detach()
    check(lambda x, a, b: x.addmm_(a, b.t()), torch.ones(3, 5), a, b)
    check(lambda o, a, b: torch.mm(a, b.t(), out=o), torch.empty(3, 5), a, b)
    check(lambda x: x.t() @ x[:, 1:3], a)


@pytest.mark.slow
def test_vectors():
    for dtype in (torch.float32, torch.complex64, torch.int64):
        a, b = make(5, dtype=dtype), make(5, dtype=dtype) + 1
        check(torch.dot, a, b)
        check(torch.vdot, a, b)
        check(torch.outer, a, b)
    mask = torch.tensor([True, False, True])
    check(torch.addr, torch.zeros(3, 3, dtype=torch.bool), mask, mask)


def test_linear_bilinear_and_einsum():
    check(torch.nn.functional.linear, make(2, 3, 4), make(5, 4), make(5))
    check(torch.nn.functional.bilinear, make(2, 3), make(2, 4), make(5, 3, 4), make(5))
    check(lambda a, b: torch.einsum("bij,bkj->bik", a, b), make(2, 3, 4), make(2, 5, 4))


def test_activation_and_wide_results():
    a, b, c = make(3, 4).detach(), make(4, 5).detach(), make(5).detach()
    check(torch._addmm_activation, c, a, b)
    check(lambda *x: torch._addmm_activation(*x, use_gelu=True), c, a, b)
    small = torch.full((20, 16), 100, dtype=torch.int8)
    check(torch._int_mm, small, small[:16].contiguous())


def test_conjugated_operands():
    a, b = make(3, 4, dtype=torch.complex64), make(3, 5, dtype=torch.complex64)
    check(lambda a, b: a.conj().t() @ b, a, b)


def test_errors():
    check_raises(torch.mm, torch.ones(2, 3), torch.ones(2, 3))
    check_raises(torch.mm, torch.ones(2, 3), torch.ones(3, 2).double())
    check_raises(torch.bmm, torch.ones(2, 3), torch.ones(3, 2))


@pytest.mark.parametrize("features", [(3, 0), (0, 2)])
@pytest.mark.parametrize("rows", [(2,), (2, 3), ()])
def test_a_linear_layer_without_features(features, rows):
    shapes = (*rows, features[0]), features[::-1], features[1:]
    check(torch.nn.functional.linear, *(torch.ones(one, requires_grad=True) for one in shapes))
