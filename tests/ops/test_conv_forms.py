"""Convolutions as products: the shapes that take each form, and that forms agree with XLA's."""

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.support.compare import check
from torch_jax.compiler import options
from torch_jax.ops import conv, conv_forms


def leaf(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).requires_grad_(True)


@pytest.mark.parametrize(
    ("size", "window", "options"),
    [
        ((2, 2), (3, 3), {"padding": 1}),
        ((1, 1), (3, 3), {"padding": 1, "stride": 2}),
        ((2, 3), (3, 2), {"padding": (2, 1), "dilation": (1, 2)}),
        ((2,), (5,), {"padding": 3, "stride": 2}),
        ((1, 2, 2), (3, 3, 3), {"padding": 1}),
    ],
)
def test_maps_smaller_than_the_window(size, window, options):
    f = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(size)]
    x, w, b = leaf(5, 3, *size), leaf(4, 3, *window), leaf(4)
    check(lambda x, w, b: f(x, w, b, **options), x, w, b, scale=4)


@pytest.mark.slow
def test_few_rows_and_small_batches():
    check(lambda x, w: F.conv2d(x, w, None, 2, 1), leaf(1, 4, 5, 4), leaf(32, 4, 3, 3), scale=4)
    check(lambda x, w: F.conv2d(x, w, None, 1, 1), leaf(2, 3, 6, 7), leaf(4, 3, 3, 3), scale=4)
    check(lambda x, w: F.conv2d(x, w, None, 1, 1), leaf(6, 3, 3, 3), leaf(4, 3, 2, 2), scale=4)


@pytest.mark.parametrize(
    ("input", "weight", "options"),
    [
        ((2, 3, 8, 12), (5, 3, 4, 4), {"stride": 4}),  # tiles
        ((2, 3, 9), (5, 3, 3), {"stride": 3}),
        ((2, 3, 9, 8), (5, 3, 4, 4), {"stride": 4}),  # a row is left
        ((2, 4, 7, 6), (8, 1, 3, 3), {"groups": 4, "padding": 1, "stride": 2}),  # by channel
        ((2, 2, 4, 5, 6), (2, 1, 3, 3, 3), {"groups": 2, "padding": 1}),
        ((2, 4, 5, 6, 7), (6, 2, 2, 3, 2), {"groups": 2, "padding": (1, 2, 0), "stride": 2}),
        ((2, 3, 7, 6, 5), (4, 3, 2, 2, 3), {"dilation": (2, 1, 1), "padding": 1}),  # volumes
    ],
)
def test_tiles_channels_and_volumes(input, weight, options):
    f = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(input)]
    x, w = leaf(*input), leaf(*weight)
    check(lambda x, w: f(x, w, None, **options), x, w, scale=4)


def test_a_transposed_convolution_of_volumes():
    options = {"stride": (2, 1, 2), "padding": 1, "output_padding": (1, 0, 0), "groups": 2}
    x, w = leaf(2, 4, 3, 4, 3), leaf(4, 3, 3, 2, 3)
    check(lambda x, w: F.conv_transpose3d(x, w, **options), x, w, scale=4)


def test_a_transposed_convolution_of_one_place():
    options = {"stride": 2, "padding": 1, "output_padding": 1}
    check(lambda x, w: F.conv_transpose2d(x, w, **options), leaf(3, 8, 1, 1), leaf(8, 4, 4, 4))


@st.composite
def geometries(draw):
    """Sizes of a map, window, stride, edges and dilation that fit, in two dimensions."""
    each = []
    for _ in range(2):
        window, stride, dilation = (draw(st.integers(1, 3)) for _ in range(3))
        edges = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        reach = (window - 1) * dilation + 1
        size = draw(st.integers(max(1, reach - sum(edges)), 8))
        each.append((size, window, stride, edges, dilation))
    return tuple(zip(*each, strict=True))


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(geometries())
def test_forms_agree_with_correlations(drawn):
    size, window, stride, edges, dilation = drawn
    geometry = stride, edges, dilation, 1
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):  # whole numbers, so that no order of sums makes a difference
        return torch.randint(-4, 5, shape, generator=generator).float()

    x, w = draw(2, 3, *size).requires_grad_(), draw(5, 3, *window).requires_grad_()
    around = [n for pair in reversed(edges) for n in pair]
    out = F.conv2d(F.pad(x, around), w, None, stride, 0, dilation)
    grad = draw(*out.shape)
    expected = [out, *torch.autograd.grad(out, (x, w), grad)]

    def forms(x, w, grad):
        return (
            conv_forms.patches_forward(x, w, geometry),
            conv_forms.patches_to_input(grad, size, w, geometry),
            conv_forms.patches_to_weight(grad, x, w.shape, geometry),
        )

    compiled = jax.jit(forms, compiler_options=options.operator())
    found = compiled(*(tensor.detach().numpy() for tensor in (x, w, grad)))
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, wanted.detach())


def convolutions(batch, channels, size, platform="cpu"):
    """How many convolutions are left in the forward pass, and in both gradients."""
    x = jax.ShapeDtypeStruct((batch, channels, size, size), np.float32)
    w = jax.ShapeDtypeStruct((channels, channels, 3, 3), np.float32)
    given = [1, 1], [1, 1], [1, 1], False, [0, 0], 1

    def forward(x, w):
        return conv.convolution(x, w, None, *given)

    def gradients(grad, x, w):
        return conv.convolution_backward(grad, x, w, None, *given, [True, True, False])[:2]

    def count(f, *args):
        lowered = jax.jit(f).trace(*args).lower(lowering_platforms=(platform,))
        return lowered.as_text().count("stablehlo.convolution")

    return count(forward, x, w), count(gradients, x, x, w)


def test_the_form_goes_by_the_shape():
    assert convolutions(8, 512, 2) == (0, 0)
    assert convolutions(8, 512, 3) == (1, 0)  # few rows: the gradients do not turn the kernel
    assert convolutions(256, 512, 2) == (0, 1)  # more rows than channels
    assert convolutions(32, 32, 32) == (1, 2)
    assert convolutions(1, 32, 32) == (1, 2)
    assert convolutions(1, 256, 14) == (1, 0)  # fewer rows than channels
    assert convolutions(8, 512, 2, "cuda") == (1, 2)
