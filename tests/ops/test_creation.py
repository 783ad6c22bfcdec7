"""Factories: every number, dtype and shape as on the CPU."""

import warnings

import pytest
import torch

from tests.support.compare import assert_same, check, check_raises

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int16, torch.complex64]


def made(factory, *args, **kwargs):
    """The same factory call on both devices."""
    assert_same(factory(*args, device="jax", **kwargs), factory(*args, **kwargs))


@pytest.mark.parametrize("dtype", [None, *DTYPES, torch.bool])
def test_constants(dtype):
    made(torch.zeros, 2, 3, dtype=dtype)
    made(torch.ones, (0, 3), dtype=dtype)
    made(torch.eye, 3, dtype=dtype)
    made(torch.eye, 2, 4, dtype=dtype)
    made(torch.scalar_tensor, 1, dtype=dtype)
    for value in (True, 3, 2.5):
        made(torch.full, (2, 2), value, dtype=dtype)
        made(torch.full, (), value, dtype=dtype)


def test_full_infers_complex_and_nan():
    made(torch.full, (2,), 1 + 2j)
    made(torch.full, (2,), float("nan"))
    made(torch.full, (2,), -(2**63), dtype=torch.int64)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_default_dtype(default):
    torch.set_default_dtype(default)
    try:
        made(torch.zeros, 2)
        made(torch.full, (2,), 0.1)
        if default != torch.bfloat16 or not hasattr(torch, "bcomplex32"):  # of meta tensors alone
            made(torch.full, (2,), 0.5j)
        made(torch.arange, 0.0, 1.0, 0.25)
        made(torch.linspace, 0, 1, 5)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "full_like"])
def test_like(name):
    extra = (7,) if name == "full_like" else ()
    for x in (torch.randn(2, 3).t(), torch.randn(4)[::2], torch.ones(2, dtype=torch.int32)):
        check(lambda x: getattr(torch, name)(x, *extra), x)
        check(lambda x: getattr(torch, name)(x, *extra, dtype=torch.float64), x)
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: getattr(torch, name)(x, *extra), image)
    check(lambda x: getattr(torch, name)(x, *extra, memory_format=torch.contiguous_format), image)


def test_new_and_fill():
    x = torch.randn(2, 3)
    check(lambda x: x.new_zeros(4), x)
    check(lambda x: x.new_ones(4, dtype=torch.int64), x)
    check(lambda x: x.new_full((2,), 3), x)
    check(lambda x: x.fill_(2), x)
    check(lambda x: x.t()[1].fill_(torch.tensor(2.0)), x)
    check(lambda x: x[:, 1].zero_(), x)
    check(lambda x: x.fill_diagonal_(5), torch.randn(3, 3))


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64, torch.int64, torch.int32])
@pytest.mark.parametrize(
    "bounds",
    [(5,), (0,), (1, 7), (7, 1, -2), (0.1, 4.9), (0, 1, 0.1), (-1, 2.3, 0.7), (3, 3), (0, 10, 2.5)],
)
def test_arange(bounds, dtype):
    if dtype == torch.int64 and 0 < abs(bounds[-1]) < 1:
        try:
            torch.arange(*bounds, dtype=dtype)
        except ValueError:  # until torch 2.13
            with pytest.raises(ValueError, match="step must be nonzero"):
                torch.arange(*bounds, dtype=dtype, device="jax")
            return
    made(torch.arange, *bounds, dtype=dtype)


def test_arange_errors():
    check_raises(lambda d: torch.arange(1, 5, -1, device=d.device), torch.ones(1))
    check_raises(lambda d: torch.arange(1, 5, 0, device=d.device), torch.ones(1))


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_range():
    made(torch.range, 0, 4)
    made(torch.range, 1, 2, 0.5)
    made(torch.range, 5, 1, -2, dtype=torch.int64)


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("steps", [0, 1, 5, 50])
def test_linspace(steps, dtype):
    for start, end in ((-3, 10), (50, 1)):
        made(torch.linspace, start, end, steps, dtype=dtype)
    made(torch.logspace, 0, 3, steps, dtype=dtype)
    made(torch.logspace, 0, 6, steps, base=2, dtype=dtype)


def test_linspace_of_tensors():
    start, end = torch.tensor(0.5), torch.tensor(3.0)
    check(lambda a, b: torch.linspace(a, b, 7, device=a.device), start, end)
    check(lambda a: torch.linspace(a, 9, 7, device=a.device), start)
    check(lambda a: torch.logspace(0, a, 7, device=a.device), start)
    made(torch.linspace, 0, 1 + 2j, 3)


def test_triangular_positions():
    for rows, columns, offset in ((3, 4, 0), (4, 3, 1), (3, 3, -1), (0, 3, 0), (2, 2, 5)):
        made(torch.tril_indices, rows, columns, offset)
        made(torch.triu_indices, rows, columns, offset, dtype=torch.int32)


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", "kaiser"])
def test_windows(name):
    window = getattr(torch, f"{name}_window")
    for length in (0, 1, 8):
        made(window, length)
        made(window, length, periodic=False)


def test_out():
    check(lambda out: torch.arange(4, out=out), torch.empty(4))
    check(lambda out: torch.full((2, 2), 3.0, out=out), torch.empty(2, 2))
    check(lambda out: torch.linspace(0, 1, 3, out=out), torch.empty(3))
    check(lambda out: torch.eye(3, out=out), torch.empty(3, 3))


@pytest.mark.parametrize(
    "fill",
    [
        lambda out: torch.linspace(0, 3, 4, out=out),
        lambda out: torch.logspace(0, 3, 4, out=out),
        lambda out: torch.arange(4, out=out),
        lambda out: torch.linspace(0, 4, 5, out=out),
    ],
)
def test_outputs_with_as_many_elements_keep_their_shape(fill):
    host, device = torch.zeros(2, 3), torch.zeros(2, 3, device="jax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arange of another size warns on the CPU
        found = [fill(x.narrow(1, 1, 2)) for x in (host, device)]
    assert_same(found[1], found[0])
    assert_same(device, host)
