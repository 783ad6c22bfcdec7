"""Reading and writing by position."""

import warnings

import pytest
import torch

from tests.support.compare import check, check_raises

DTYPES = [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64]

X = torch.randn(4, 5, 6)
I = torch.tensor([0, 3, -1])  # noqa: E741
J = torch.tensor([[1], [2]])
MASK = X[..., 0] > 0

READS = {
    "vector": lambda x, i, j, m: x[i],
    "negative": lambda x, i, j, m: x[:, i - 1],
    "two": lambda x, i, j, m: x[i, i],
    "apart": lambda x, i, j, m: x[i, :, i],
    "broadcast": lambda x, i, j, m: x[:, i, j],
    "matrix": lambda x, i, j, m: x[j],
    "number": lambda x, i, j, m: x[i[0], :, i],
    "none": lambda x, i, j, m: x[None, i, ..., i],
    "empty": lambda x, i, j, m: x[i[:0]],
    "int32": lambda x, i, j, m: x[i.int()],
    "list": lambda x, i, j, m: x[[0, 2], 1:3],
    "cpu index": lambda x, i, j, m: x[i.cpu()],
    "permuted": lambda x, i, j, m: x.permute(2, 0, 1)[:, i],
    "permuted apart": lambda x, i, j, m: x.permute(2, 0, 1)[i, :, i],
    "mask": lambda x, i, j, m: x[m],
    "mask of a row": lambda x, i, j, m: x[m[:, 0]],
    "mask inside": lambda x, i, j, m: x[:, m[0]],
    "mask and number": lambda x, i, j, m: x[m[:, 0], :, 1],
    "mask and index": lambda x, i, j, m: x[m[:, 0], j],
    "cpu mask": lambda x, i, j, m: x[m.cpu()],
    "no element": lambda x, i, j, m: x[m & ~m],
    "True": lambda x, i, j, m: x[True],
    "False": lambda x, i, j, m: x[False],
    "zero-dim mask": lambda x, i, j, m: x[m[0, 0] | True],
}


@pytest.mark.parametrize("name", READS)
def test_read(name):
    check(READS[name], X.clone().requires_grad_(), I, J, MASK)


@pytest.mark.parametrize("dtype", DTYPES)
def test_read_and_write_dtypes(dtype):
    x = (X * 3).to(dtype)
    check(lambda x, i: x[i], x, I)
    check(lambda x, m: x[m], x, MASK)
    check(lambda x, i: x.index_put((i,), x[:3]), x, I)
    check(lambda x, i: x.index_put((i,), x[0], accumulate=True), x, torch.tensor([1, 1, 2]))


def test_each_mask_of_bytes_is_warned_about_once():
    def warned(device: str) -> list[int]:
        x, mask = torch.zeros(7, 7).to(device), torch.ones(7, dtype=torch.uint8).to(device)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            x[mask]
            first = len(found)
            x[mask, mask] = torch.ones(7).to(device)
        assert all(one.filename == __file__ for one in found)
        return [first, len(found)]

    assert warned("jax") == warned("cpu") == [1, 3]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_uint8_is_a_mask():
    check(lambda x, m: x[m], X.clone().requires_grad_(), MASK.byte())
    check(lambda x, m: x.index_put((m,), x[0, :1]), X, MASK.byte())


def setter(where, value):
    """``x[where(…)] = value(x, …)`` of a copy, so that both have gradients."""

    def function(x, v, i, j, m):
        x = x.clone()
        x[where(i, j, m)] = value(v, m)
        return x

    return function


WRITES = {
    "number": setter(lambda i, j, m: i, lambda v, m: 2.0),
    "vector": setter(lambda i, j, m: i, lambda v, m: v),
    "matrix": setter(lambda i, j, m: (i, j), lambda v, m: v),
    "inside": setter(lambda i, j, m: (slice(None), i), lambda v, m: v[:1]),
    "cpu index": setter(lambda i, j, m: i.cpu(), lambda v, m: v),
    "cpu number": setter(lambda i, j, m: i, lambda v, m: torch.tensor(5.0)),
    "mask": setter(lambda i, j, m: m, lambda v, m: v),
    "mask number": setter(lambda i, j, m: m, lambda v, m: 2.0),
    "mask each": setter(lambda i, j, m: m, lambda v, m: v.repeat(int(m.sum()), 1)),
    "mask inside": setter(lambda i, j, m: (slice(None), m[0]), lambda v, m: v.view(1, 1, 6)),
    "mask each inside": setter(
        lambda i, j, m: (slice(None), m[0]), lambda v, m: v.repeat(4, int(m[0].sum()), 1)
    ),
    "mask and number": setter(lambda i, j, m: (m[:, 0], slice(None), 2), lambda v, m: v[:5]),
    "mask and index": setter(lambda i, j, m: (m[:, 0], i[:1]), lambda v, m: v),
    "cpu mask": setter(lambda i, j, m: m.cpu(), lambda v, m: 2.0),
    "no element": setter(lambda i, j, m: m & ~m, lambda v, m: v),
    "True": setter(lambda i, j, m: True, lambda v, m: v),
}


@pytest.mark.parametrize("name", WRITES)
def test_write(name):
    v = torch.randn(6, requires_grad=True)
    check(WRITES[name], X.clone().requires_grad_(), v, I, J, MASK)


def test_write_through_a_view():
    check(lambda x, i: x.t()[1:].index_put_((i,), x[0, 0]), torch.randn(3, 5), I)
    check(lambda x, m: x[:, 1].masked_fill_(m, 7), torch.randn(4, 5), MASK[:, 0])


def test_accumulate():
    i = torch.tensor([0, 0, 1])
    v = torch.randn(3, 5, 6, requires_grad=True)
    check(lambda x, i, v: x.index_put((i,), v, accumulate=True), X.clone().requires_grad_(), i, v)
    ones = torch.ones(6, requires_grad=True)
    check(lambda x, m, v: x.index_put((m,), v, accumulate=True), X, MASK, ones)


def test_errors():
    check_raises(lambda x, i: x[i], X, torch.tensor([4]))
    check_raises(lambda x, i: x[:, i], X, torch.tensor([-6]))
    check_raises(lambda x, m: x[m], X, torch.tensor([True, False]))
    check_raises(lambda x, i: x[i], X, torch.tensor([1.0]))
    check_raises(lambda x, i: x[i, i[:2]], X, torch.tensor([1, 2, 3]))
    check_raises(lambda x, i: x.index_put((i,), x[0]), X, torch.tensor([4]))
    check_raises(lambda x, m: x.index_put((m,), x[:3]), X, torch.tensor([True] * 4))
    check_raises(lambda x, m: x.index_put((m,), x[:3]), X, torch.tensor([True, True, False]))
    with pytest.raises(
        IndexError, match="out of bounds for dimension 0 with size 5 .in aten.index"
    ):
        X.to("jax")[:, torch.tensor([5])]


ALONG = {
    "index_select": lambda x, i, s: x.index_select(1, i),
    "index_add": lambda x, i, s: x.index_add(1, i, s),
    "index_add alpha": lambda x, i, s: x.index_add(1, i, s, alpha=2),
    "index_copy": lambda x, i, s: x.index_copy(1, i[:2], s[:, :2]),
    "index_fill": lambda x, i, s: x.index_fill(1, i, 3),
    "index_fill tensor": lambda x, i, s: x.index_fill(-2, i, s[0, 0, 0]),
}


@pytest.mark.parametrize("name", ALONG)
def test_along_a_dimension(name):
    i, s = torch.tensor([4, 0, 4]), torch.randn(4, 3, 6)
    check(ALONG[name], X.clone().requires_grad_(), i, s.requires_grad_())
    for dtype in (torch.int64, torch.bool, torch.bfloat16):
        check(ALONG[name], (X * 3).to(dtype), i, (s.detach() * 3).to(dtype))
    check(ALONG[name], X.transpose(0, 2).contiguous().transpose(0, 2), i, s.detach())


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_index_reduce(reduce):
    i = torch.tensor([4, 0, 4])
    for include in (True, False):
        check(
            lambda x, i, s: x.index_reduce(1, i, s, reduce, include_self=include),  # noqa: B023
            X.clone().requires_grad_(),
            i,
            torch.randn(4, 3, 6, requires_grad=True),
        )
    check(lambda x, i: x.index_reduce(0, i, x[:3], reduce), torch.arange(-5, 5), i)
    none = torch.zeros(0, dtype=torch.int64)
    check_raises(lambda x, i: x.index_reduce(0, i, x[:, :1], reduce), torch.ones(3, 2), none)
    check_raises(lambda x, i: x.index_reduce(0, i, x[:1], reduce), torch.ones(3), none)


def test_along_zero_dim_and_empty():
    x, zero = torch.tensor(2.0), torch.tensor([0])
    check(lambda x, i: x.index_select(0, i), x, zero)
    check(lambda x, i: x.index_add(0, i, x), x, zero)
    check(lambda x, i: x.index_fill(0, i, 5), x, zero)
    check(lambda x, i: x.index_copy(0, i, x[None] * 3), x, zero)
    check(lambda x, i: x.index_select(1, i), X, zero[:0])
    check(lambda x, i: x.index_select(0, i), torch.empty(2, 0), zero)


def test_index_fill_wraps():
    check(lambda x, i: x.index_fill(1, i, 3), X, torch.tensor([-1, -5]))


@pytest.mark.slow
def test_along_errors():
    i = torch.tensor([-1])
    check_raises(lambda x, i: x.index_select(0, i), X, i)
    check_raises(lambda x, i: x.index_add(0, i, x[:1]), X, i)
    check_raises(lambda x, i: x.index_copy(0, i, x[:1]), X, i)
    check_raises(lambda x, i: x.index_fill(0, i - 4, 1), X, i)
    check_raises(lambda x, i: x.gather(0, i[:, None, None]), X, i)
    check_raises(lambda x, i: x.scatter(0, i[:, None, None], 1.0), X, i)
    check_raises(lambda x, i: x.scatter_add(0, i[:, None, None], x), X, i)
    check_raises(lambda x, i: x.take(i + 200), X, i)


def test_take_and_put():
    i = torch.tensor([[3, -1], [0, 119]])
    v = torch.randn(2, 2, requires_grad=True)
    check(lambda x, i: x.take(i), X.clone().requires_grad_(), i)
    check(lambda x, i, v: x.put(i, v), X.clone().requires_grad_(), i, v)
    check(lambda x, i, v: x.put(i * 0, v, accumulate=True), X.clone().requires_grad_(), i, v)
    check(lambda x, i, v: x.put_(i, v), X.clone(), i, v.detach())
    check(
        lambda x, i: torch.take_along_dim(x, i, 2),
        X.clone().requires_grad_(),
        torch.tensor([[[3]]]),
    )


@pytest.mark.filterwarnings("ignore:The reduce argument")
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.slow
def test_gather_and_scatter(dim):
    i = torch.randint(0, 4, (3, 4, 2))
    s = torch.randn(4, 5, 3)  # larger than the index
    same = torch.randn(3, 4, 2, requires_grad=True)
    check(lambda x, i: x.gather(dim, i), X.clone().requires_grad_(), i)
    check(lambda x, i, s: x.scatter_add(dim, i, s), X.clone().requires_grad_(), i, same)
    check(lambda x, i, s: x.scatter_add(dim, i, s), X, i, s)
    check(lambda x, i: x.scatter(dim, i, 7.0), X.clone().requires_grad_(), i)
    check(lambda x, i, s: x.scatter(dim, i, s, reduce="multiply"), X, i, s)
    check(lambda x, i: x.scatter(dim, i, 2.0, reduce="add"), X, i)
    once = torch.arange(3).view([3 if d == dim % 3 else 1 for d in range(3)])
    check(
        lambda x, i, s: x.scatter(dim, i, s),
        X.clone().requires_grad_(),
        once,
        torch.randn(once.shape, requires_grad=True),
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.complex64])
def test_scatter_dtypes(dtype):
    i = torch.tensor([[0, 0, 1], [2, 2, 2]])
    x, s = (torch.randn(3, 3) * 3).to(dtype), (torch.randn(2, 3) * 3).to(dtype)
    check(lambda x, i, s: x.scatter_add_(0, i, s), x, i, s)
    check(lambda x, i: x.gather(0, i), x, i)
    check(lambda x, i: x.scatter_(0, i, 1), x, i)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.slow
def test_scatter_reduce(reduce, include_self):
    i = torch.tensor([[0, 0, 3], [3, 3, 3]])

    def function(x, i, s):
        return x.scatter_reduce(0, i, s, reduce, include_self=include_self)

    x, s = torch.randn(5, 3), torch.randn(2, 3)
    check(function, x.requires_grad_(), i, s.requires_grad_())
    check(function, (x * 5).long(), i, (s * 5).long())
    if reduce != "mean":
        check(function, x > 0, i, s > 0)
    x, s = x.detach().clone(), s.detach().clone()
    x[0, 0] = s[1, 1] = float("nan")
    check(function, x, i, s)


def test_scatter_zero_dim_and_empty():
    x, zero = torch.tensor(2.0), torch.tensor(0)
    check(lambda x, i: x.gather(0, i), x, zero)
    check(lambda x, i: x.scatter(0, i, x * 3), x, zero)
    check(lambda x, i: x.scatter_add(0, i, x), x, zero)
    check(lambda x, i: x.gather(1, i), X[0], torch.zeros(3, 0, dtype=torch.int64))
    check(lambda x, i: x.scatter(0, i, 1.0), X[0], torch.zeros(0, 5, dtype=torch.int64))


@pytest.mark.slow
def test_masked():
    x = X.clone().requires_grad_()
    check(torch.masked_select, x, MASK[..., None])
    check(torch.masked_select, x, MASK[0, 0])
    source = torch.randn(200, requires_grad=True)
    check(lambda x, m, s: x.masked_scatter(m, s), x, MASK[..., None].expand(4, 5, 6), source)
    check(lambda x, m, s: x.masked_scatter(m, s), x, MASK[:1, :, None], source)
    check(lambda x, m, s: x.masked_scatter_(m, s), X.clone(), X > 0, source.detach())
    check_raises(lambda x, m: x.masked_scatter(m, x[0, 0]), X, X > -9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nonzero(dtype):
    x = (torch.randn(4, 5) * 2).long().to(dtype)
    # the CPU lays the result out by columns, and no meta function says so
    check(torch.nonzero, x, strides=False)
    check(torch.argwhere, x, strides=False)
    check(lambda x: list(torch.nonzero(x, as_tuple=True)), x, strides=False)
    for size in (0, 3, 30):
        check(lambda x: torch.nonzero_static(x, size=size, fill_value=7), x)  # noqa: B023


def test_nonzero_of_numbers_and_nothing():
    for x in (torch.tensor(0), torch.tensor(3), torch.empty(0, 3), torch.zeros(3)):
        check(torch.nonzero, x)
        check(lambda x: torch.nonzero_static(x, size=2), x)


def test_out():
    i = torch.tensor([1, 0])
    check(lambda x, i: torch.index_select(x, 0, i, out=x.new_empty(2, 5, 6)), X, i)
    check(lambda x, i: torch.gather(x[0, 0], 0, i, out=x.new_empty(0)), X, i)
    check(lambda x, m: torch.masked_select(x, m, out=x.new_empty(0)), X, X > 0)
