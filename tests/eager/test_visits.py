"""Writes through windows that overlap: the CPU's results, or PyTorch's refusal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import executors
from tests.support.compare import check

IN_PLACE = {
    "add": lambda v, w: v.add_(w),
    "add_number": lambda v, w: v.add_(1),
    "add_itself": lambda v, w: v.add_(v),
    "alpha": lambda v, w: v.sub_(w, alpha=2),
    "mul": lambda v, w: v.mul_(w),
    "div": lambda v, w: v.div_(w),
    "transposed": lambda v, w: v.add_(w.transpose(0, -1).contiguous().transpose(0, -1)),
    "copy": lambda v, w: v.copy_(w),
    "copy_transposed": lambda v, w: v.copy_(w.transpose(0, -1).contiguous().transpose(0, -1)),
    "copy_integers": lambda v, w: v.copy_(w.long()),
    "lerp": lambda v, w: v.lerp_(w, 0.25),
    "addcmul": lambda v, w: v.addcmul_(w, w, value=0.5),
    "clamp": lambda v, w: v.clamp_(2, 5),
    "fill": lambda v, w: v.fill_(3),
    "masked_fill": lambda v, w: v.masked_fill_(w > 3, 9),
    "broadcast": lambda v, w: v.mul_(w[:1]),
    "set_part": lambda v, w: v.__setitem__(0, w[0]),
    "out": lambda v, w: torch.add(w, 1, out=v),
}


@st.composite
def windows(draw):
    """Sizes, strides and an offset of a view of 48 elements; expanded dims are refused anyway."""
    rank = draw(st.integers(1, 3))
    size = [draw(st.integers(1, 4)) for _ in range(rank)]
    stride = [draw(st.integers(1, 4)) for _ in range(rank)]
    return size, stride, draw(st.integers(0, 4))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(windows(), st.sampled_from(sorted(IN_PLACE)))
def test_elements_are_written_in_the_order_of_the_cpu(place, case):
    _compare(place, case, "eager")


@pytest.mark.parametrize("case", IN_PLACE)
@pytest.mark.parametrize("executor", ["eager", "jit"])
def test_sliding_windows(case, executor):
    _compare(([6, 3], [1, 1], 1), case, executor)


def _compare(place, case, executor):
    other = torch.arange(1.0, 1 + torch.Size(place[0]).numel()).view(place[0])

    def run(x, w):
        IN_PLACE[case](x.as_strided(*place), w)

    check(run, torch.arange(1.0, 49.0), other, executor=executor)


def test_other_dtypes_and_many_visits():
    check(lambda x: x.view(torch.int32).unfold(0, 3, 1).add_(1), torch.arange(12.0))
    check(lambda x: x.unfold(0, 3, 1).mul_(1.01), torch.arange(12.0).bfloat16())
    check(lambda x: x.unfold(0, 100, 1).add_(1), torch.zeros(300))


REFUSED = {
    "no loop over elements": lambda x: x.unfold(0, 3, 1).cumsum_(0),
    "reads elsewhere": lambda x: x.unfold(0, 3, 1).add_(x[:3]),
    "several": lambda x: torch._foreach_add_([x.unfold(0, 3, 1)], 1.0),
    "out": lambda x: torch.add(x.unfold(0, 3, 1), 1, out=x.unfold(0, 3, 1)),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("executor", ["eager", "jit"])
def test_what_has_no_such_order_is_refused_with_the_sentence_of_pytorch(case, executor):
    x = torch.arange(12.0, device="jax")
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        executors.by(executor, REFUSED[case])(x)
    assert x.tolist() == list(range(12))
