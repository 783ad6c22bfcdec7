"""Modules whose values change under ``torch_jax.jit``: how many traces are made."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax


def linear() -> nn.Module:
    """One on the device."""
    return nn.Linear(3, 3).to("jax")


def test_values_of_an_equal_form_need_no_new_trace():
    model, other = linear(), linear()
    function = torch_jax.jit(lambda x: F.relu(model(x)))
    x = torch.ones(3, device="jax")
    function(x)
    model.load_state_dict(other.state_dict())
    function(x)
    model.weight = nn.Parameter(torch.full((3, 3), 2.0, device="jax"))
    assert torch.equal(function(x).cpu(), F.relu(model(x)).cpu())
    assert function.explain().traces == 1, function.explain()


@pytest.mark.slow
def test_training_and_evaluation_in_turn_are_two_traces():
    model = nn.Sequential(linear(), nn.Dropout(0.5), nn.BatchNorm1d(3).to("jax"))
    function = torch_jax.jit(lambda x: model(x))
    for _ in range(4):
        model.train()
        function(torch.ones(2, 3, device="jax"))
        model.eval()
        function(torch.ones(2, 3, device="jax"))
    assert function.explain().traces == 2, function.explain()
