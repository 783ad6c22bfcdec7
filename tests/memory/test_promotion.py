"""Type promotion, wrapped numbers, zero-dim operands, broadcasting and empties follow PyTorch."""

from __future__ import annotations

import itertools

import pytest
import torch

import torch_jax
from tests.support.compare import assert_same, check, check_raises

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
NUMBERS = [True, 3, -2.5, 1 + 2j]


def _pairs():
    """Every pair of dtypes, each with and without dims."""
    for a, b in itertools.combinations_with_replacement(DTYPES, 2):
        yield torch.ones(2, dtype=a), torch.ones(2, dtype=b)
        yield torch.ones(2, dtype=a), torch.ones((), dtype=b)
        yield torch.ones((), dtype=a), torch.ones(2, dtype=b)


@pytest.mark.parametrize("operation", [torch.mul, torch.div, torch.eq])
@pytest.mark.slow
def test_pairs_of_dtypes(operation):
    for a, b in _pairs():
        if torch.result_type(a, b) == torch.complex32:  # XLA has no such dtype
            continue
        assert_same(operation(a.to("jax"), b.to("jax")), operation(a, b))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.slow
def test_numbers(number):
    for dtype in DTYPES:
        for shape in ((2,), ()):
            x = torch.ones(shape, dtype=dtype)
            if torch.result_type(x, number) == torch.complex32:  # XLA has no such dtype
                continue
            for operation in (torch.mul, torch.eq):
                assert_same(operation(x.to("jax"), number), operation(x, number))


def test_numbers_under_another_default_dtype():
    x = torch.arange(3)
    torch.set_default_dtype(torch.float64)
    try:
        check(lambda x: (x * 0.1, x.sin(), x / 3), x)
    finally:
        torch.set_default_dtype(torch.float32)
    check(lambda x: (x * 0.1, x.sin(), x / 3), x)


def test_zero_dim_cpu_operands_take_part():
    x = torch.arange(3, dtype=torch.int32)
    for other in (torch.tensor(2.5), torch.tensor(2, dtype=torch.int64), torch.tensor(True)):
        expected = x * other
        assert_same(x.to("jax") * other, expected)
        assert_same(other * x.to("jax"), expected)


def test_a_zero_dim_cpu_tensor_fills_a_mask_under_jit():
    x, seven = torch.arange(3.0), torch.tensor(7.0)
    filled = torch_jax.jit(lambda x: x.masked_fill(x > 1, seven))
    assert_same(filled(x.to("jax")), x.masked_fill(x > 1, seven))


@pytest.mark.parametrize(
    "a,b",
    [
        ((3, 1), (1, 4)),
        ((2, 3), ()),
        ((0, 3), (3,)),
        ((1, 0), (5, 1)),
        ((), ()),
        ((2, 1, 3), (4, 1)),
    ],
)
def test_broadcasting(a, b):
    check(lambda x, y: (x + y, x * y, torch.maximum(x, y)), torch.randn(a), torch.randn(b))


def test_a_changing_number_does_not_compile_again():
    from torch_jax.dispatch.ladder import KERNELS_BY_OP

    x = torch.ones(3, device="jax")
    kernel = KERNELS_BY_OP[torch.ops.aten.mul.Tensor]
    x * 0.5
    size = len(kernel.cache)
    for i in range(20):
        assert (x * (i / 7)).tolist() == pytest.approx([i / 7] * 3)
    assert len(kernel.cache) == size
    assert (x * -0.0).signbit().all().item() and not (x * 0.0).signbit().any().item()


def test_in_place_results_must_fit():
    check_raises(lambda x: x.add_(1.5), torch.arange(3))
    check_raises(lambda x, y: x.mul_(y), torch.ones(3), torch.ones(3, dtype=torch.complex64))
    check_raises(lambda x, y: x.add_(y), torch.ones(1), torch.ones(2, 2))
    check(lambda x: x.mul_(2.5), torch.ones(3))
    check(lambda x, y: x.add_(y), torch.zeros(2, 3), torch.arange(3))


def test_out_variants_resize_cast_and_refuse():
    check(lambda x, y: torch.add(x, 1, out=y), torch.arange(3), torch.empty(0))
    check(lambda x, y: torch.sum(x, 0, out=y), torch.ones(2, 3), torch.empty(3))
    check_raises(lambda x, y: torch.add(x, 1.5, out=y), torch.ones(3), torch.empty(3).long())
    with pytest.warns(UserWarning, match="was resized"):
        check(lambda x, y: torch.mul(x, 2, out=y), torch.ones(4), torch.empty(3))
    transposed = torch.ones(2, 3, 4).permute(2, 0, 1)
    check(lambda x, y: torch.add(x, 1, out=y).stride(), transposed, torch.empty(0))
    check(lambda x, y: torch.eq(x, x, out=y).stride(), transposed, torch.empty(0).bool())


def test_integers_wrap_and_are_not_truncated():
    big = torch.tensor([2**62, -(2**62), 2**40 + 1])
    check(lambda x: (x + 1, x * 4, x // 3, x.sum()), big)
    check(lambda x: x + x, torch.tensor([200, 100], dtype=torch.uint8))
    check(lambda x: x * 3, torch.tensor([100, -100], dtype=torch.int8))


def test_casts_wrap_as_on_the_cpu():
    x = torch.tensor([-1.0, 1.5, 300.7, -129.0, 2.0**31])
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int64, torch.bool, torch.bfloat16):
        check(lambda x, dtype=dtype: x.to(dtype), x)
