"""Reductions of segments, which the operator database omits."""

import pytest
import torch

from tests.support.compare import check, check_raises

REDUCTIONS = ["sum", "mean", "max", "min", "prod"]


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_without_an_initial_value(reduce):
    x = torch.tensor([1.0, 0.0, 3.0, float("nan"), 0.0], requires_grad=True)
    check(torch.segment_reduce, x, reduce, lengths=torch.tensor([2, 0, 3]))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_elements_of_no_segment(reduce):
    x = torch.arange(1.0, 7).requires_grad_()
    check(torch.segment_reduce, x, reduce, offsets=torch.tensor([1, 3, 4]), unsafe=True, grad=False)


@pytest.mark.parametrize("lengths", [[2, 2], [6, -1], [[5]]])
def test_errors(lengths):
    check_raises(torch.segment_reduce, torch.ones(5), "sum", lengths=torch.tensor(lengths))
