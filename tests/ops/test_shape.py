"""Joining, repeating, reordering and embedding; the gradients of views."""

import pytest
import torch

from tests.support.compare import check, check_raises

DTYPES = [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64]


def randn(*shape, grad=True):
    return torch.randn(*shape, requires_grad=grad)


def many(*shape):
    """A tensor of each dtype, of which the floats ask for gradients."""
    for dtype in DTYPES:
        x = (torch.randn(*shape) * 3).to(dtype)
        yield x.requires_grad_(dtype.is_floating_point or dtype.is_complex)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat_and_stack(dim):
    for x in many(2, 3):
        check(lambda x, y: torch.cat([x, y, x], dim), x, x.detach() * 1)
        check(lambda x, y: torch.stack([x, y], dim), x, x.detach() * 1)


def test_cat_promotes_and_skips_empty():
    check(lambda *xs: torch.cat(xs), torch.ones(2), torch.ones(2, dtype=torch.int64))
    check(lambda *xs: torch.cat(xs), torch.ones(2).bfloat16(), torch.ones(1).half())
    check(lambda *xs: torch.cat(xs, 1), torch.empty(0), randn(2, 3), randn(2, 0))
    check(lambda *xs: torch.cat(xs), torch.empty(0), torch.empty(0))
    check(lambda *xs: torch.stack(xs), torch.tensor(1.0), torch.tensor(2.0))
    check(lambda x: torch.cat([x, x], out=x.new_empty(4)), torch.ones(2))
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x: torch.cat([x, x], 1), image)


def test_cat_errors():
    check_raises(lambda x, y: torch.cat([x, y]), torch.ones(2, 3), torch.ones(2, 4))
    check_raises(lambda x: torch.cat([x, x], 2), torch.ones(2, 3))
    check_raises(lambda x: torch.stack([x, x[:1]]), torch.ones(2))


def test_block_diag():
    check(torch.block_diag, randn(2, 3), randn(4), torch.tensor(2.0), torch.empty(0, 2))


@pytest.mark.parametrize("dims", [(0,), (-1,), (0, 2), ()])
def test_flip_and_rot90(dims):
    for x in many(2, 3, 4):
        check(lambda x: x.flip(dims), x)
    check(lambda x: torch.rot90(x, 1, (0, 2)), randn(2, 3, 4))
    check(lambda x: torch.rot90(x, -2, (1, 2)), randn(2, 3, 4))
    check(lambda x: x.flip([]), torch.tensor(2.0))


@pytest.mark.slow
def test_roll():
    for x in many(3, 4):
        check(lambda x: x.roll(2), x)
        check(lambda x: x.roll((1, -3), (0, 1)), x)
    check(lambda x: x.roll(1, 0), torch.empty(0, 3))
    for shift in (2**31, -(2**31) - 1, 2**62, -(2**62) + 1):
        check(lambda x, n=shift: x.roll(n), torch.arange(7))
        check(lambda x, n=shift: x.roll((n, 1), (-1, 0)), torch.arange(14).view(2, 7))


@pytest.mark.slow
def test_repeat():
    for x in many(2, 3):
        check(lambda x: x.repeat(2, 1), x)
        check(lambda x: x.repeat(3, 1, 2), x)
    check(lambda x: x.repeat(3), torch.tensor(2.0, requires_grad=True))
    check(lambda x: x.repeat(0, 2), randn(2, 3))
    check(lambda x: x.tile(2, 2, 2), randn(3))


def test_repeat_interleave():
    counts = torch.tensor([2, 0, 3])
    check(lambda x: x.repeat_interleave(3), randn(2, 3))
    check(lambda x: x.repeat_interleave(2, dim=1), randn(2, 3))
    check(lambda x, n: x.repeat_interleave(n, dim=0), randn(3, 2), counts)
    check(lambda x, n: x.repeat_interleave(n, dim=0, output_size=5), randn(3, 2), counts)
    check(torch.repeat_interleave, counts)
    check(torch.repeat_interleave, counts.int())
    check_raises(torch.repeat_interleave, torch.tensor([1, -1]))


@pytest.mark.parametrize("diagonal", [-(2**63), -5, -1, 0, 2, 2**63 - 1])
@pytest.mark.slow
def test_triangles(diagonal):
    for x in many(2, 3, 4):
        check(lambda x: x.tril(diagonal), x)
        check(lambda x: x.triu(diagonal), x)
    check(lambda x: x.tril_(diagonal), torch.randn(3, 3))
    check(lambda x: x.t().triu_(diagonal), torch.randn(4, 3))


@pytest.mark.parametrize("offset", [-2, 0, 1])
def test_diagonals(offset):
    check(lambda x: torch.diag_embed(x, offset), randn(2, 3))
    check(lambda x: torch.diag_embed(x, offset, 0, 2), randn(2, 3))
    check(lambda x: torch.diag_embed(x, offset, -1, 0), randn(2, 3))
    check(lambda x: x.diagonal(offset), randn(4, 3))
    check(lambda x: x.diagonal(offset, 2, 0), randn(4, 2, 3))
    check(lambda x: torch.diag(x, offset), randn(3))
    count = 3 - abs(offset)
    check(lambda x, y: torch.diagonal_scatter(x, y, offset), randn(3, 3, 3), randn(3, count))
    check(lambda x, y: torch.diagonal_scatter(x, y, offset, 2, 0), randn(3, 3, 3), randn(3, count))


@pytest.mark.parametrize(
    "index",
    [
        (slice(1, 5),),
        (slice(None, None, 3),),
        (slice(None), slice(2, 100, 2)),
        (slice(4, 2),),
        (2,),
        (slice(None), -1),
        (..., None, 1),
    ],
    ids=str,
)
def test_views_have_gradients(index):
    check(lambda x: x[index], randn(6, 5))
    check(lambda x: x.t()[index] * 2, randn(6, 5))


def test_view_scatters():
    x = randn(4, 6)
    check(lambda x, s: torch.slice_scatter(x, s, 1, 1, 4), x, randn(4, 3))
    check(lambda x, s: torch.slice_scatter(x, s, 1, 0, None, 2), x, randn(4, 3))
    check(lambda x, s: torch.slice_scatter(x, s, 0, 9), x, randn(0, 6))
    check(lambda x, s: torch.select_scatter(x, s, 1, -2), x, randn(4))
    check(lambda x, s: torch.as_strided_scatter(x, s, (2, 2), (6, 2), 1), x, randn(2, 2))


@pytest.mark.parametrize("size, step", [(3, 1), (2, 2), (2, 3), (5, 2), (7, 7), (1, 1)])
def test_unfold(size, step):
    check(lambda x: x.unfold(1, size, step), randn(2, 7, 3))
    check(lambda x: x.unfold(-1, size, step), randn(9))


def test_windows_spread_over_dims_of_length_one():
    check(torch.ops.aten.unfold_backward, torch.randn(1, 3, 1, 3), [2, 7, 2], 1, 3, 2)


def test_unfold_of_a_number():
    check(lambda x: x.unfold(0, 1, 1), torch.tensor(2.0, requires_grad=True))


def test_channels():
    check(lambda x: torch.channel_shuffle(x, 3), torch.randn(2, 6, 2, 2))
    images = torch.randn(2, 6, 2, 2).to(memory_format=torch.channels_last)
    check(lambda x: torch.channel_shuffle(x, 3), images)
    check(lambda x: torch.pixel_shuffle(x, 2), randn(2, 8, 3, 3))
    check(lambda x: torch.pixel_unshuffle(x, 2), randn(2, 2, 4, 6))


def test_copies_of_views():
    x = randn(4, 6)
    check(lambda x: torch.permute_copy(x, (1, 0)), x)
    check(lambda x: torch.view_copy(x, (3, 8)), x)
    check(lambda x: torch.narrow_copy(x, 1, 2, 3), x.detach())
    check(lambda x: list(torch.unbind_copy(x, 1)), x)
    check(lambda x: list(torch.split_with_sizes_copy(x, (1, 3), 0)), x)
    check(lambda x: torch.expand_copy(x[:, :1], (4, 3)), x)
    check(lambda x: torch.diagonal_copy(x), x)
    check(lambda x: list(torch.unsafe_split(x, 4, 1)), x)
    check(lambda x: torch._chunk_cat([x, x[:3]], 0, 2), x.detach())


def test_scatters_out_of_range():
    x = randn(2, 3)
    check_raises(lambda x: torch.select_scatter(x, x[0], 0, 2), x)
    check_raises(lambda x: torch.select_scatter(x, x[0], 0, -3), x)
    check_raises(lambda x: torch.diagonal_scatter(x, x[:, 0], 9), x)
