"""Convolutions against the CPU: geometry, groups, dtypes, gradients."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.compare import check, check_raises
from torch_jax import target

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
SIZES = {1: (9,), 2: (9, 8), 3: (5, 6, 7)}


def leaf(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(True)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"dilation": 2, "padding": 2, "groups": 2},
        {"padding": "same", "groups": 4},
    ],
)
def test_convolution(n, options):
    groups = options.get("groups", 1)
    x, w, b = leaf(2, 4, *SIZES[n]), leaf(8, 4 // groups, *[3] * n), leaf(8)
    check(lambda x, w, b: CONV[n](x, w, b, **options), x, w, b)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": 2, "dilation": 3, "output_padding": 2, "groups": 2},
        {"stride": 3, "padding": 2, "groups": 4},
    ],
)
def test_transposed(n, options):
    x, w = leaf(2, 4, *SIZES[n]), leaf(4, 2, *[3] * n)
    b = leaf(2 * options.get("groups", 1))
    check(lambda x, w, b: TRANSPOSED[n](x, w, b, **options), x, w, b)


def test_window_and_stride_differ_by_dimension():
    x, w = leaf(1, 3, 11, 7), leaf(4, 3, 3, 2)
    check(lambda x, w: F.conv2d(x, w, None, (2, 1), (0, 1), (1, 3)), x, w)
    check(lambda x, w: F.conv2d(x, w, None, (3, 2)), x, w)  # the last rows are not reached


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [1, 2])
def test_dtypes(dtype, groups):
    x, w, b = leaf(2, 4, 6, 6, dtype=dtype), leaf(4, 4 // groups, 3, 3, dtype=dtype), leaf(4)
    b = b.detach().to(dtype).requires_grad_(True)
    # PyTorch's float16 kernels sum over the batch in another order, with a rounding each
    scale = 1.0 if dtype == torch.float64 else 4.0
    check(lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=groups), x, w, b, scale=scale)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_integers(platform, monkeypatch, nothing_is_remembered):
    """GPUs' libraries do not convolve them."""
    monkeypatch.setattr(target, "platform", lambda: platform)
    x, w = torch.arange(64).reshape(1, 4, 4, 4), torch.arange(72).reshape(4, 2, 3, 3) - 9
    for convolve in (F.conv2d, F.conv_transpose2d):
        options = {"stride": 2, "padding": 1, "groups": 2, "dilation": (1, 2)}
        check(convolve, x, w, executor="jit", **options)


def test_integers_of_a_transposed_volume():
    x, w = torch.arange(36).view(1, 1, 4, 3, 3), torch.arange(120).view(1, 2, 3, 4, 5) % 7
    check(lambda x, w: F.conv_transpose3d(x, w, None, 2, 1, 1), x, w)


def test_a_group_sees_no_other():
    x, w = leaf(2, 8, 6, 6), leaf(8, 2, 3, 3)
    x.data[:, 2] = float("nan")
    check(lambda x, w: F.conv2d(x, w, padding=1, groups=4), x, w)


def test_complex():
    x, w = leaf(1, 2, 5, 5, dtype=torch.complex64), leaf(3, 2, 3, 3, dtype=torch.complex64)
    check(F.conv2d, x.detach(), w.detach())


@pytest.mark.slow
def test_depthwise():
    """A kernel per channel takes another way on the CPU."""
    x = leaf(2, 4, 9, 8)
    options = {"stride": (2, 1), "padding": 1, "dilation": (1, 2), "groups": 4}
    check(lambda x, w: F.conv2d(x, w, **options), x, leaf(4, 1, 3, 2))
    check(lambda x, w: F.conv2d(x, w, **options), x, leaf(8, 1, 3, 2))
    check(lambda x, w: F.conv_transpose2d(x, w, **options), x, leaf(4, 1, 3, 2))
    half = x.detach().bfloat16(), leaf(4, 1, 3, 2).detach().bfloat16()
    check(lambda x, w: F.conv2d(x, w, **options), *half)


def test_large_windows():
    """Their gradients take another way on the CPU than those of small ones."""
    x, w = leaf(2, 3, 12, 11), leaf(4, 3, 5, 5)
    check(lambda x, w: F.conv2d(x, w, None, 2, 2), x, w, scale=4)
    check(lambda x, w: F.conv2d(x, w, None, (1, 2), 1, (1, 2)), x, w, scale=4)


def test_unbatched_and_empty():
    check(F.conv2d, leaf(3, 6, 6), leaf(2, 3, 3, 3))
    check(F.conv2d, leaf(0, 3, 6, 6), leaf(2, 3, 3, 3), leaf(2))


def test_channels_last():
    x = leaf(2, 4, 6, 6).detach().to(memory_format=torch.channels_last).requires_grad_(True)
    check(F.conv2d, x, leaf(5, 4, 3, 3), leaf(5))


@pytest.mark.usefixtures("nothing_is_remembered")
@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 1)])
def test_images_of_one_channel_in_either_memory_format(order):
    images, weight = torch.ones(4, 1, 2, 3), torch.ones(2, 1, 1, 1)
    convolve = torch_jax.jit(F.conv2d, pure=True, audit="error")
    for stride in (((6, 6, 3, 1), (6, 1, 3, 1))[at] for at in order):
        expected = F.conv2d(images.as_strided(images.shape, stride), weight)
        given = images.to("jax").as_strided(images.shape, stride), weight.to("jax")
        for _ in range(2):
            assert convolve(*given).stride() == expected.stride()


def test_only_some_gradients():
    x, w = leaf(1, 2, 5, 5), leaf(2, 2, 3, 3)
    for gx, gw in itertools.product([False, True], repeat=2):
        check(F.conv2d, x.detach().requires_grad_(gx), w.detach().requires_grad_(gw))


@pytest.mark.slow
def test_double_backward():
    def penalty(x, w):
        (grad,) = torch.autograd.grad(F.conv2d(x, w).square().sum(), x, create_graph=True)
        return grad.square().sum()

    check(penalty, leaf(1, 2, 5, 5), leaf(2, 2, 3, 3), scale=4)


def test_conv_tbc():
    check(torch.conv_tbc, leaf(7, 2, 3), leaf(3, 3, 4), leaf(4), 1)


def test_module_with_padding_mode():
    torch.manual_seed(0)
    module = nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect")
    x = torch.randn(1, 2, 5, 5)
    expected = module(x).detach()
    actual = copy.deepcopy(module).to("jax")(x.to("jax"))
    torch.testing.assert_close(actual.cpu(), expected)


def test_errors():
    check_raises(F.conv2d, torch.randn(1, 3, 5, 5), torch.randn(2, 2, 3, 3))
    check_raises(F.conv2d, torch.randn(1, 2, 2, 2), torch.randn(2, 2, 3, 3))
