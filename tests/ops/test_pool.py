"""Pooling against the CPU."""

import pytest
import torch
from torch.nn import functional as F

from tests.support.compare import check, check_raises

AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
ADAPTIVE_AVG = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
ADAPTIVE_MAX = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
UNPOOL = {1: F.max_unpool1d, 2: F.max_unpool2d, 3: F.max_unpool3d}
SIZES = {1: (11,), 2: (9, 8), 3: (5, 6, 7)}


def leaf(n, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(2, 3, *SIZES[n], generator=generator)
    return x.to(dtype).requires_grad_(True)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "ceil_mode": True},
        {"stride": 1, "padding": 1, "count_include_pad": False},
    ],
)
def test_average(n, options):
    check(lambda x: AVG[n](x, 3, **options), leaf(n))


def test_average_divisor_and_integers():
    check(lambda x: F.avg_pool2d(x, 2, divisor_override=3), leaf(2))
    check(lambda x: F.avg_pool2d(x, 2), torch.arange(32).reshape(2, 4, 4) - 16)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "ceil_mode": True},
        {"stride": 1, "padding": 1, "dilation": 2},
    ],
)
def test_maximum(n, options):
    check(lambda x: MAX[n](x, 3, return_indices=True, **options), leaf(n))


def test_maximum_of_a_large_window():
    check(lambda x: F.max_pool2d(x, 7, stride=1, padding=3), leaf(2))


def test_windows_far_larger_than_the_input_take_no_time():
    for padding in (0, 2):
        options = {"padding": padding, "ceil_mode": True}
        check(lambda x, o=options: F.avg_pool2d(x, 2560, **o), leaf(2))
        check(lambda x, o=options: F.max_pool2d(x, 2560, **o), leaf(2))


def test_maximum_of_equals_infinities_and_nan():
    x = torch.zeros(1, 1, 6, 6)
    x[0, 0, 1, 1] = x[0, 0, 1, 2] = x[0, 0, 4, 4] = torch.nan
    x[0, 0, :2, 4:] = -torch.inf
    check(lambda x: F.max_pool2d(x, 2, padding=1, return_indices=True), x)
    check(lambda x: F.max_pool2d(x, 3, stride=1, return_indices=True), x)
    check(lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_dtypes(dtype):
    x = leaf(2).detach().mul(9).to(dtype)
    if dtype.is_floating_point:
        x.requires_grad_(True)
        check(lambda x: F.avg_pool2d(x, 3, 2), x)
        check(lambda x: F.adaptive_avg_pool2d(x, (4, 3)), x)
    check(lambda x: F.max_pool2d(x, 3, 2), x)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_adaptive(n, size):
    check(lambda x: ADAPTIVE_AVG[n](x, size), leaf(n))
    check(lambda x: ADAPTIVE_MAX[n](x, size, return_indices=True), leaf(n))


def test_fractional():
    sample = torch.rand(2, 3, 2)
    function = lambda x, s: F.fractional_max_pool2d(  # noqa: E731
        x, 2, output_size=(5, 4), _random_samples=s, return_indices=True
    )
    check(function, leaf(2), sample)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_unpooling(n):
    values, places = MAX[n](leaf(n).detach(), 2, return_indices=True)
    check(
        lambda v, p: UNPOOL[n](v, p, 2, output_size=SIZES[n]), values.requires_grad_(True), places
    )


@pytest.mark.slow
def test_lp_pool_and_channels_last():
    check(lambda x: F.lp_pool2d(x, 2, 2), leaf(2))
    x = leaf(2).detach().to(memory_format=torch.channels_last).requires_grad_(True)
    check(lambda x: F.max_pool2d(x, 2), x)


def test_empty_batch_and_errors():
    check(lambda x: F.max_pool2d(x, 2), torch.empty(0, 3, 4, 4))
    check_raises(lambda x: F.max_pool2d(x, 2, padding=2), torch.ones(1, 1, 4, 4))
    check_raises(lambda x: F.avg_pool2d(x, 9), torch.ones(1, 1, 4, 4))


@pytest.mark.parametrize("n", [2, 3])
def test_fractional_of_an_output_without_elements(n):
    pool = getattr(F, f"fractional_max_pool{n}d")
    size, x = (0,) + (2,) * (n - 1), torch.ones(1, 2, *(5,) * n)
    check(lambda x, s: pool(x, 2, size, _random_samples=s), x, torch.rand(1, 2, n))
