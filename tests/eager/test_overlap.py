"""Writes to memory that the same call reads: refused where the CPU refuses, else its results."""

from __future__ import annotations

import pytest
import torch

from tests.support import executors
from tests.support.compare import check


def _index(x):
    return (x * 0).long()


# Each writes to its argument, arange(8.)
CASES = {
    "copy": lambda x: x[1:].copy_(x[:-1]),
    "setitem": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "copy_itself": lambda x: x.copy_(x[:]),
    "copy_apart": lambda x: x[:4].copy_(x[4:]),
    "copy_transposed": lambda x: x[:4].view(2, 2).copy_(x[:4].view(2, 2).t()),
    "add_part": lambda x: x[0:4].add_(x[1:5]),
    "add_apart": lambda x: x[:4].add_(x[4:]),
    "add_itself": lambda x: x.add_(x),
    "add_same_view": lambda x: x.add_(x[:]),
    "add_strided": lambda x: x[:6:2].add_(x[1:4]),
    "add_interleaved": lambda x: x[::2].add_(x[1::2]),
    "add_number": lambda x: x[1:].add_(2),
    "scatter": lambda x: x.scatter_(0, _index(x), x),
    "scatter_apart": lambda x: x[:4].scatter_(0, _index(x[4:]), x[4:]),
    "index_copy": lambda x: x.index_copy_(0, _index(x), x),
    "index_add": lambda x: x.index_add_(0, _index(x), x),
    "put": lambda x: x.put_(_index(x), x),
    "index_put": lambda x: x.index_put_((_index(x),), x),
    "masked_fill_by_element": lambda x: x.masked_fill_(x > 2, x[0]),
    "fill_by_element": lambda x: x.fill_(x[1]),
    "windows_filled": lambda x: x.unfold(0, 3, 1).fill_(2),
    "expanded": lambda x: x[:1].expand(4).add_(1),
    "foreach": lambda x: torch._foreach_add_([x[1:]], [x[:-1]]),
    "foreach_apart": lambda x: torch._foreach_add_([x[:4]], [x[4:]]),
    "out_part": lambda x: torch.add(x[:6], 1, out=x[1:7]),
    "out_number": lambda x: torch.mul(x[:6], 2, out=x[1:7]),
    "out_whole": lambda x: torch.exp(x, out=x),
    "out_apart": lambda x: torch.sin(x[:4], out=x[4:]),
    "out_cumsum": lambda x: torch.cumsum(x[:6], 0, out=x[1:7]),
    "out_sort": lambda x: torch.sort(x[:6], out=(x[1:7], _index(x[:6]))),
    "out_gather": lambda x: torch.gather(x, 0, _index(x), out=x),
    "out_cat": lambda x: torch.cat([x[:3], x[3:]], out=x),
    "out_index_select": lambda x: torch.index_select(x, 0, _index(x), out=x),
    "out_where": lambda x: torch.where(x[:6] > 2, x[:6], x[:6], out=x[1:7]),
    "out_expanded": lambda x: torch.add(x[:4], 1, out=x[:1].expand(4)),
}


@pytest.mark.parametrize("executor", ["eager", "jit"])
@pytest.mark.parametrize("case", CASES)
def test_writes_to_shared_memory(case, executor):
    def run(x):
        x = x.clone()
        CASES[case](x)
        return x

    x = torch.arange(8.0)
    try:
        run(x)
    except RuntimeError:
        with pytest.raises(RuntimeError, match="single memory location"):
            executors.by(executor, run)(x.to("jax"))
    else:
        check(run, x, executor=executor)


def test_the_same_shapes_at_other_places():
    for begin in (0, 1, 2, 4, 1):
        x = torch.arange(8.0)
        y = x.to("jax")
        if 0 < begin < 4:
            with pytest.raises(RuntimeError, match="single memory location"):
                y[:4].add_(y[begin : begin + 4])
        else:
            x[:4].add_(x[begin : begin + 4])
            y[:4].add_(y[begin : begin + 4])
        assert torch.equal(y.cpu(), x)


WINDOWS = {
    "add": lambda x: x.unfold(0, 3, 1).add_(1),
    "copy": lambda x: x.unfold(0, 3, 1).copy_(torch.ones_like(x)[0]),
    "of_another_dtype": lambda x: x.view(torch.int32).unfold(0, 3, 1).add_(1),
    "no loop over elements": lambda x: x.unfold(0, 3, 1).cumsum_(0),
    "reads elsewhere": lambda x: x.unfold(0, 3, 1).add_(x[:3]),
    "out": lambda x: torch.add(x[:3], 1, out=x.as_strided((2, 3), (1, 1))),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_compiled_writes_through_windows_that_overlap_are_refused(case):
    x = torch.arange(12.0, device="jax")
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        executors.by("jit", WINDOWS[case])(x)
    assert x.tolist() == list(range(12))


def test_windows_side_by_side_are_written():
    def run(x):
        return x.clone().as_strided((3, 2), (4, 3)).add_(1)

    x = torch.arange(12.0)
    assert executors.by("jit", run)(x.to("jax")).tolist() == run(x).tolist()
