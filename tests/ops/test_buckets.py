"""Sizes that depend on values, in a device's memory: few programs, and the CPU's results."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import ledger
from tests.support.compare import assert_same, check, check_raises
from torch_jax import target
from torch_jax.dispatch import ladder


@pytest.fixture(autouse=True, scope="module")
def on_an_accelerator():
    """Operators take the way of accelerators, which JAX's CPU can go as well."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(target, "on_cpu", lambda: False)
        ladder.forget_compiled()  # what was compiled before reads arrays of the host
        yield
    ladder.forget_compiled()


def _mask(*shape: int, every: int = 2) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) % every == 0).view(shape)


X = torch.arange(24.0).view(2, 3, 4)
ONE = torch.tensor([1])

CASES = {
    "masked_select": lambda x, m: x.masked_select(m.view(2, 3, 4)),
    "broadcast": lambda x, m: x.masked_select(m.view(2, 3, 4)[:1]),
    "whole": lambda x, m: x[m.view(2, 3, 4)],
    "first": lambda x, m: x[m[:2]],
    "first_two": lambda x, m: x[m[:6].view(2, 3)],
    "middle": lambda x, m: x[:, m[:3]],
    "last": lambda x, m: x[..., m[:4]],
    "last_two": lambda x, m: x[:, m[:12].view(3, 4)],
    "beside_a_number": lambda x, m: x[1, m[:3]],
    "beside_an_index": lambda x, m: x[torch.ones(1, dtype=torch.int64, device=x.device), m[:3]],
    "apart_from_an_index": lambda x, m: x[m[:2], :, torch.tensor([[1], [3]], device=x.device)],
    "two_masks": lambda x, m: x[m[:2], m[1:4]],
    "two_masks_apart": lambda x, m: x[m[:2], :, m[:4]] if m[:4].sum() == m[:2].sum() else x,
    "as_long_as_an_index": lambda x, m: x[
        :, m[:3], torch.arange(int(m[:3].sum()), device=x.device)
    ],
    "of_a_view": lambda x, m: x.transpose(0, 2)[m[:4], :, 1],
    "bytes": lambda x, m: x[m[:2].to(torch.uint8)],
    "nonzero": lambda x, m: m.view(2, 3, 4).nonzero(),
    "nonzero_of_floats": lambda x, m: (x * m.view(2, 3, 4)).nonzero(),
    "nonzero_vector": lambda x, m: m.nonzero(),
    "columns": lambda x, m: torch.where(m.view(2, 3, 4)),
    "flat_columns": lambda x, m: m.view(4, 6).nonzero().t().view(-1),
    "unique": lambda x, m: torch.unique(
        x * m.view(2, 3, 4), return_inverse=True, return_counts=True
    ),
    "consecutive": lambda x, m: torch.unique_consecutive(m.view(2, 3, 4), return_counts=True),
    "bincount": lambda x, m: torch.bincount(m.nonzero()[:, 0]),
    "bincount_weights": lambda x, m: torch.bincount(m.long() * 20, x.view(-1), minlength=3),
    "repeat_interleave": lambda x, m: x.repeat_interleave(m[:3].long() + 1, 1),
    "put": lambda x, m: x.index_put_((m[:2], m[1:3]), x.new_tensor(5.0)),
    "put_row": lambda x, m: x.index_put((m[:2], ONE.to(x.device)), -x[0, 0]),
    "put_apart": lambda x, m: _set(x, (m[:2], slice(None), ONE.to(x.device)), -1.0),
    "put_values": lambda x, m: x.index_put((m[:2], ONE.to(x.device)), -x[m[:2], 0]),
    "add": lambda x, m: x.index_put((m[:2], ONE.to(x.device)), -x[0, 0], accumulate=True),
    "out": lambda x, m: torch.masked_select(x, m.view(2, 3, 4), out=x.new_empty(0)),
}


def _set(x, at, value):
    x[at] = value
    return x


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("case", CASES)
def test_results_and_strides_are_those_of_the_cpu(case):
    for mask in (_mask(24), _mask(24, every=3), torch.zeros(24, dtype=bool), ~_mask(24, every=99)):
        try:
            CASES[case](X.clone(), mask)
        except (IndexError, RuntimeError):
            check_raises(CASES[case], X, mask)
        else:
            check(CASES[case], X, mask)


@pytest.mark.slow
def test_gradients():
    check(lambda x, m: x[m].pow(2).sum(), X.clone().requires_grad_(), _mask(2, 3))
    check(lambda x, m: x[:, m].pow(2).sum(), X.clone().requires_grad_(), _mask(3))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.booleans(), min_size=40, max_size=40), st.sampled_from([(40,), (5, 8), (2, 4, 5)])
)
def test_masks_as_they_come(flags, shape):
    mask = torch.tensor(flags).view(shape)
    x = torch.arange(40.0).view(shape)
    check(lambda x, m: (x[m], m.nonzero(), x.masked_select(m), x[m].view(-1)), x, mask)


PROGRAMS = {
    "select": lambda x, m: x[m],
    "columns": lambda x, m: x.view(4, 64)[:, m[:64]],
    "nonzero": lambda x, m: m.view(4, 64).nonzero(),
    "unique": lambda x, m: torch.unique(x * m),
    "bincount": lambda x, m: torch.bincount((4 * m.sum()).view(1)),
    "put": lambda x, m: x.view(256, 1).index_put((m, 0 * ONE.to(x.device)), x[5]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_thirty_counts_are_a_handful_of_programs(name):
    """One for each length: 16, 32, 64, 128 and 256."""
    function = PROGRAMS[name]
    x = torch.arange(256.0)
    masks = [torch.arange(256) % 64 < 2 * n for n in range(1, 31)]
    on_device = x.to("jax"), [mask.to("jax") for mask in masks]
    function(on_device[0], on_device[1][0])  # what hangs on no count
    before = ledger.programs()
    results = [function(on_device[0], mask) for mask in on_device[1]]
    assert ledger.programs() - before <= 5
    assert_same(results, [function(x, mask) for mask in masks])


def test_what_comes_of_them_is_an_ordinary_tensor():
    kept = X.to("jax")[_mask(2, 3, 4).to("jax")]
    kept += 1
    kept[2:4].zero_()
    assert kept.tolist() == [1, 3, 0, 0, *range(9, 25, 2)]
    assert kept.is_contiguous() and kept.storage_offset() == 0
    assert kept.view(3, 4).sum(1).tolist() == kept.cpu().view(3, 4).sum(1).tolist()
