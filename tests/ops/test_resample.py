"""Interpolation, grids, padding and folding against the CPU."""

import pytest
import torch
from torch.nn import functional as F

import torch_jax
from tests.support.compare import check, check_raises

SIZES = {1: (7,), 2: (5, 6), 3: (3, 4, 5)}


def leaf(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(True)


METHODS = [("nearest", 1), ("nearest", 2), ("nearest", 3), ("nearest-exact", 2), ("linear", 1)]
METHODS += [("bilinear", 2), ("bicubic", 2), ("trilinear", 3), ("area", 2)]


@pytest.mark.parametrize(("mode", "n"), METHODS)
@pytest.mark.parametrize(
    "options",
    [
        {"size": 4},
        {"scale_factor": 2},
        {"scale_factor": 1.7},
        {"scale_factor": 0.6, "recompute_scale_factor": True},
    ],
)
def test_interpolate(mode, n, options):
    check(lambda x: F.interpolate(x, mode=mode, **options), leaf(2, 3, *SIZES[n]))


@pytest.mark.parametrize(("mode", "n"), [("linear", 1), ("bilinear", 2), ("bicubic", 2)])
@pytest.mark.parametrize("size", [1, 9])
def test_align_corners(mode, n, size):
    x = leaf(2, 3, *SIZES[n])
    check(lambda x: F.interpolate(x, size, mode=mode, align_corners=True), x)


STAYS = [("linear", 1), ("bilinear", 2), ("trilinear", 3), ("bicubic", 2)]
STAYS += [(mode, n) for mode in ("nearest", "nearest-exact") for n in (1, 2, 3)]


@pytest.mark.parametrize(("mode", "n"), STAYS)
def test_sizes_that_stay_or_double_for_another_scale(mode, n):
    """Some of PyTorch's kernels copy, or repeat, such a dimension whatever the scale."""
    for last in (1.1, 2.1, 0.6):
        scale = (*[1.1] * (n - 1), last)
        x = leaf(1, 2, *[5] * n)
        check(lambda x, scale=scale: F.interpolate(x, scale_factor=scale, mode=mode), x)
    if n == 2 and "exact" not in mode:
        x = torch.arange(0, 250, 5, dtype=torch.uint8).view(1, 2, 5, 5)
        check(lambda x: F.interpolate(x, scale_factor=1.1, mode=mode), x)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialias_of_sizes_that_stay(mode):
    x = leaf(1, 2, 5, 7)
    check(
        lambda x: F.interpolate(x, scale_factor=(1.1, 0.6), mode=mode, antialias=True), x, scale=2
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [3, 9])
def test_antialias(mode, size):
    x = leaf(1, 2, 8, 7)
    check(lambda x: F.interpolate(x, size, mode=mode, antialias=True), x, scale=2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_interpolate_dtypes(dtype, mode):
    x = leaf(1, 2, 6, 5).detach().mul(50).to(dtype)
    if dtype.is_floating_point:
        x.requires_grad_(True)
    check(lambda x: F.interpolate(x, 8, mode=mode), x)


def test_nan_stays_where_it_is():
    x = torch.zeros(1, 1, 4)
    x[..., 2] = torch.nan
    check(lambda x: F.interpolate(x, 9, mode="linear"), x)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_grid_sample(mode, padding_mode, align_corners):
    grid = (leaf(2, 3, 4, 2).detach() * 1.2).requires_grad_(True)
    options = mode, padding_mode, align_corners
    check(lambda x, g: F.grid_sample(x, g, *options), leaf(2, 2, 5, 6), grid, scale=4)


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_grid_sample_of_a_volume(padding_mode):
    grid = leaf(1, 2, 3, 2, 3)
    options = "bilinear", padding_mode, False
    check(lambda x, g: F.grid_sample(x, g, *options), leaf(1, 2, 3, 4, 5), grid, scale=4)


def test_identity_grid():
    theta = torch.eye(2, 3)[None].requires_grad_(True)

    def function(x, theta):
        grid = F.affine_grid(theta, list(x.shape), align_corners=True)
        return F.grid_sample(x, grid, align_corners=True)

    check(function, leaf(1, 2, 5, 5), theta, scale=4, grad=False)


def test_shuffles():
    check(lambda x: F.pixel_shuffle(x, 2), leaf(2, 8, 3, 2))
    check(lambda x: F.pixel_unshuffle(x, 2), leaf(2, 2, 4, 6))


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.slow
def test_pad(mode, n):
    pad = [1, 2, 2, 0, 0, 1][: 2 * n]
    check(lambda x: F.pad(x, pad, mode), leaf(2, 3, *SIZES[n]))
    check(lambda x: F.pad(x, pad, mode), leaf(2, 3, *SIZES[n]).detach().mul(9).long())


def test_pad_values_and_crops():
    check(lambda x: F.pad(x, (1, -2, 0, 1), value=3.5), leaf(3, 4))
    check(lambda x: F.pad(x, (1, -2, 0, 1), value=3.5), torch.arange(12).reshape(3, 4))
    check(lambda x: F.pad(x, (1, 1), value=True), torch.zeros(3, dtype=torch.bool))
    check(lambda x: F.pad(x, (2, -1), "replicate"), leaf(2, 3, 7))
    check(lambda x: F.pad(x, (2, -1), "reflect"), leaf(2, 3, 7))
    check_raises(lambda x: F.pad(x, (7, 0), "reflect"), torch.ones(2, 3, 7))


@pytest.mark.parametrize(
    "options", [{}, {"padding": 1, "stride": 2}, {"dilation": 2, "stride": (1, 2)}]
)
def test_fold(options):
    x = leaf(2, 3, 6, 7)
    check(lambda x: F.unfold(x, (2, 3), **options), x)
    columns = F.unfold(x, (2, 3), **options).detach().requires_grad_(True)
    check(lambda c: F.fold(c, (6, 7), (2, 3), **options), columns)
    check(lambda c: F.fold(c, (6, 7), (2, 3), **options), columns[0].detach())


@pytest.mark.xla_both
def test_points_on_pixels_by_sums_of_products():
    """XLA may round a product and a sum once, in the numbers of pixels and not in their weights."""
    moves = [[0.375, -0.8, 0], [-0.9375, 0.25, -0.875]], [[0.25, 0.1, -0.4], [0, 0.75, 0.125]]
    image = torch.rand(2, 3, 16, 20)

    def warped(moves, image):
        (y, x), m = image.shape[2:], moves[..., None, None]
        xs = torch.linspace(1 / x - 1, 1 - 1 / x, x, device=m.device)
        ys = torch.linspace(1 / y - 1, 1 - 1 / y, y, device=m.device)[:, None]
        points = [m[:, i, 0] * xs + m[:, i, 1] * ys + m[:, i, 2] for i in range(2)]
        return F.grid_sample(image, torch.stack(points, -1), align_corners=False)

    given = torch.tensor(moves), image
    actual = torch_jax.jit(warped, pure=True)(*(x.to("jax") for x in given))
    torch.testing.assert_close(actual.cpu(), warped(*given), rtol=1e-4, atol=1e-4)
