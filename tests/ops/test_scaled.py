"""Scaled products of eight-bit floats, and products of groups, against the CPU."""

import pytest
import torch

from tests.support.compare import check, check_raises

EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2]


def make(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_numbers_too_large_for_eight_bits(dtype):
    x = torch.tensor([200.0, 464, 465, -1e6, torch.inf, torch.nan])
    check(lambda x: x.to(dtype).float(), x)


@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [False, True])
def test_scaled_product(out_dtype, rows):
    """Of numbers whose sums are exact: kernels of some CPUs round to bfloat16, then to 8 bits."""
    a, b = (make(n, 32).sign().to(EIGHT_BITS[0]) for n in (15, 48))
    of_rows = (make(n).round().exp2() for n in (15, 48))
    scales = [one.view(shape) for one, shape in zip(of_rows, ((15, 1), (1, 48)), strict=True)]
    b, scales = b.t(), scales if rows else (torch.tensor(0.5), torch.ones(1))
    bias = make(48).round().to(out_dtype or torch.float32)

    def product(*args):
        return torch._scaled_mm(*args, out_dtype=out_dtype).float()

    check(product, a, b, *scales, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.slow
def test_groups(dtype):
    def leaf(*shape):
        return make(*shape, dtype=dtype).requires_grad_(True)

    def ends(*places):
        return torch.tensor(places, dtype=torch.int32)

    rows = ends(4, 8, 8, 16)
    check(torch._grouped_mm, leaf(16, 32), leaf(4, 32, 48), rows, strides=False)
    check(torch._grouped_mm, leaf(2, 16, 32), leaf(32, 48), ends(16, 48), strides=False)
    check(torch._grouped_mm, leaf(16, 32), leaf(32, 48), ends(16, 32), strides=False)
    check(torch._grouped_mm, leaf(4, 16, 32), leaf(4, 32, 48), strides=False)


def test_convolution_refuses_what_the_cpu_refuses():
    x, w = make(2, 4, 8, 8), make(4, 4, 3, 3)
    plain = [1, 1], [0, 0], [1, 1], False, [0, 0], 1

    def convolution(x, w, bias=None, **options):
        names = "stride padding dilation transposed output_padding groups".split()
        return torch.convolution(
            x, w, bias, *(dict(zip(names, plain, strict=True)) | options).values()
        )

    for options in (
        {"stride": [0, 1]},
        {"dilation": [0, 1]},
        {"padding": [-1, 0]},
        {"groups": 0},
        {"transposed": True, "output_padding": [1, 1]},
        {"bias": make(3)},
    ):
        bias = options.pop("bias", None)
        check_raises(lambda *a, options=options: convolution(*a, **options), x, w, bias)


@pytest.mark.parametrize("dtype", [*EIGHT_BITS, torch.float8_e8m0fnu])
@pytest.mark.parametrize(
    "other", [torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bfloat16]
)
def test_floats_of_eight_bits_from_and_to_other_dtypes(dtype, other):
    x = torch.tensor([-2.0, 0.0, 1.0, 3.0, 100.0]).abs_().to(other)
    check(lambda x: x.to(dtype).float(), x)
    check(lambda x: x.to(other), x.to(dtype))
