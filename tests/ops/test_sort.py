"""Order: sorts, ranks, searches, histograms and distinct elements."""

import pytest
import torch

from tests.support.compare import check, check_raises

NAN, INF = float("nan"), float("inf")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def ties(dtype, *shape):
    """A tensor in which many elements are equal."""
    return torch.randint(0, 4, shape or (3, 7)).to(dtype)


def distinct(*shape):
    """A float tensor without equal elements, negative ones too."""
    n = torch.Size(shape).numel()
    return (torch.randperm(n) - n // 2).float().view(shape)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_stable_sort(dtype, descending):
    for dim in (0, -1):
        check(lambda x: x.sort(dim=dim, descending=descending, stable=True), ties(dtype))  # noqa: B023
    check(lambda x: x.argsort(stable=True, descending=descending), ties(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending):
    check(lambda x: x.sort(1, descending), distinct(3, 4, 5).requires_grad_())
    check(lambda x: x.sort(0, descending), distinct(4, 5).t())
    check(lambda x: x.sort(descending=descending), torch.tensor([1, NAN, -INF, INF, NAN, -0.0, 0]))
    check(lambda x: x.sort(descending=descending), torch.tensor(3.0))
    check(lambda x: x.sort(descending=descending), torch.empty(2, 0))
    check(torch.msort, distinct(4, 3))
    check(lambda x: torch.sort(x, out=(x.new_empty(0), x.new_empty(0).long())), distinct(4))


def test_sort_of_least_integers():
    least = torch.iinfo(torch.int64).min
    check(lambda x: x.sort(descending=True), torch.tensor([0, least, -1, least + 1]))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, -1])
def test_topk(dim, largest):
    check(lambda x: x.topk(2, dim, largest), distinct(4, 6).requires_grad_())
    check(lambda x: x.topk(4, dim, largest), distinct(4, 4).long())
    check(lambda x: x.topk(3, dim, largest), distinct(4, 6).bfloat16())
    check(lambda x: x.topk(3, dim, largest), torch.tensor([1, NAN, INF, -INF]))
    check(lambda x: x.topk(1, dim, largest), torch.tensor(2.0))
    check(lambda x: x.topk(0, dim, largest), distinct(3))
    check_raises(lambda x: x.topk(9, dim, largest), distinct(3))


def test_topk_counts_negative_nan():
    check(lambda x: x.topk(2)[0], torch.tensor([1.0, -NAN, 3.0]))


@pytest.mark.slow
@pytest.mark.parametrize("keepdim", [False, True])
def test_kthvalue_and_mode(keepdim):
    for dim in (0, 1, -1):
        check(lambda x: x.kthvalue(2, dim, keepdim), distinct(4, 5).requires_grad_())  # noqa: B023
        for dtype in DTYPES:
            check(lambda x: x.mode(dim, keepdim), ties(dtype, 6, 5))  # noqa: B023
    check(lambda x: x.kthvalue(1, 0, keepdim), torch.tensor(2.0))
    check(lambda x: x.mode(0, keepdim), torch.tensor(2.0))
    check(lambda x: x.mode(), distinct(3, 4).requires_grad_())
    check_raises(lambda x: x.kthvalue(6), distinct(4, 5))
    check_raises(lambda x: x.mode(0), torch.empty(0, 2))


@pytest.mark.parametrize("name", ["median", "nanmedian"])
@pytest.mark.slow
def test_median(name):
    median = getattr(torch, name)
    for shape in ((5,), (4,), (3, 6)):
        check(median, distinct(*shape).requires_grad_())
        check(lambda x: median(x, -1), distinct(*shape).requires_grad_())
        check(lambda x: median(x, 0, keepdim=True), distinct(*shape).long())
    holes = distinct(4, 5)
    holes[0, 2] = holes[1, 1] = holes[1, 3] = NAN
    check(median, holes)
    check(lambda x: median(x, 1), holes)
    holes[3] = NAN  # which of its positions nanmedian gives is not specified
    check(lambda x: median(x, 1)[0], holes)
    check(median, torch.tensor(3))
    check(lambda x: median(x, 0), torch.tensor(3))
    check(median, torch.empty(0))
    check_raises(lambda x: median(x, 0), torch.empty(0))


@pytest.mark.slow
def test_quantile():
    x = torch.randn(4, 6, requires_grad=True)
    q = torch.tensor([0.0, 0.3, 1.0])
    check(lambda x: x.quantile(0.4, 1), x)
    check(lambda x, q: x.quantile(q, 0, keepdim=True, interpolation="lower"), x, q)
    check(lambda x, q: x.nanquantile(q), x, q)


@pytest.mark.slow
@pytest.mark.parametrize("right", [False, True])
def test_search(right):
    edges = torch.tensor([-1.0, 0, 0, 2, 5])
    x = torch.tensor([[-INF, 0, 1, 2], [5, 9, NAN, -0.0]])
    check(lambda e, x: torch.searchsorted(e, x, right=right), edges, x)
    check(lambda e, x: torch.searchsorted(e, x, side="right", out_int32=True), edges, x)
    check(lambda e: torch.searchsorted(e, 1.5, right=right), edges)
    check(lambda e, x: torch.bucketize(x, e, right=right), edges, x)
    check(lambda e: torch.bucketize(3, e, right=right), edges.long())
    check(lambda e, x: torch.searchsorted(e, x, right=right), edges[:0], x)
    check(lambda e, x: torch.searchsorted(e, x, right=right), edges, x[:0])
    rows = torch.randn(3, 2, 9).sort(-1)[0]
    check(lambda e, x: torch.searchsorted(e, x, right=right), rows, torch.randn(3, 2, 4))
    shuffled = torch.randn(9)
    order = shuffled.argsort()
    check(
        lambda e, x, s: torch.searchsorted(e, x, right=right, sorter=s),
        shuffled,
        torch.randn(4),
        order,
    )
    check(lambda e, x: torch.searchsorted(e, x, right=right), edges.long(), x.nan_to_num(7).long())
    check_raises(lambda e, x: torch.searchsorted(e, x), rows, x)


@pytest.mark.slow
def test_isin():
    check(torch.isin, ties(torch.int64), torch.tensor([1, 3]))
    check(lambda a, b: torch.isin(a, b, invert=True), ties(torch.float32), torch.tensor([NAN, 2]))
    check(lambda a, b: torch.isin(a, b), ties(torch.float32), torch.empty(0))
    check(lambda a: torch.isin(a, 2), ties(torch.int64))
    check(lambda a: torch.isin(2, a), ties(torch.int64))


@pytest.mark.slow
def test_histograms():
    x = torch.randn(200)
    edges = torch.tensor([-2.0, -0.5, 0, 3])
    for args in ((10,), (10, -1, 1), (7, 0, 0), (4, 9, 12)):
        check(lambda x: x.histc(*args), x)  # noqa: B023
    check(lambda x: x.histc(5), torch.full((3,), 2.0))
    check(lambda x: x.histc(6, 0, 3), ties(torch.float32))
    check(lambda x: torch.histogram(x, 8), x)
    check(lambda x: torch.histogram(x, 8, range=(-1.0, 1.0), density=True), x)
    check(lambda x, w: torch.histogram(x, 8, weight=w), x, x.abs())
    check(lambda x, e: torch.histogram(x, e), x, edges)
    check(lambda x: torch.histogram(x, 3), torch.empty(0))
    check_raises(lambda x: x.histc(0), x)


def test_bincount():
    x = ties(torch.int64, 20)
    check(torch.bincount, x)
    check(lambda x: torch.bincount(x, minlength=9), x.int())
    check(torch.bincount, x, torch.rand(20))
    check(torch.bincount, x, torch.rand(20).double())
    check(torch.bincount, x, ties(torch.int64, 20))
    check(lambda x: torch.bincount(x, minlength=3), x[:0])
    check_raises(torch.bincount, torch.tensor([1, -1]))
    check_raises(torch.bincount, torch.ones(2, 2, dtype=torch.int64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_unique(dtype):
    x = ties(dtype)
    check(torch.unique, x)
    check(lambda x: torch.unique(x, return_inverse=True, return_counts=True), x)
    check(lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), x)
    check(torch.unique, x[:0])


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unique_slices(dim):
    x = torch.randint(0, 2, (8, 2, 7))
    for function in (torch.unique, torch.unique_consecutive):
        # CPU moves the dimension back as a view; the strides of ours are those of a new tensor
        check(
            lambda x: function(x, return_inverse=True, return_counts=True, dim=dim),  # noqa: B023
            x,
            strides=False,
        )
        check(lambda x: function(x, dim=dim), (x - 0.5).bfloat16(), strides=False)  # noqa: B023


def test_unique_keeps_each_nan():
    check(torch.unique, torch.tensor([NAN, 1, NAN, 1]))
    check(torch.unique_consecutive, torch.tensor([NAN, NAN, 1, 1]))
