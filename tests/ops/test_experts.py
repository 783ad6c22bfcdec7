"""Operators of transformers."""

from __future__ import annotations

import pytest
import torch

import torch_jax
from tests.support.compare import assert_same, to_jax


@pytest.mark.slow
@pytest.mark.parametrize("ends", [[2, 2, 5], [0, 1, 4]], ids=["all", "rows without an expert"])
def test_products_with_experts_and_their_gradients(ends):
    pytest.importorskip("transformers.integrations.moe")
    product = torch.ops.transformers.grouped_mm_fallback
    x, offs = torch.randn(5, 4, requires_grad=True), torch.tensor(ends, dtype=torch.int32)
    weight = torch.randn(3, 6, 4, requires_grad=True)
    expected = product(x, weight.transpose(1, 2), offs)
    wanted = torch.autograd.grad(expected.square().sum(), (x, weight))
    x, weight, offs = to_jax([x, weight, offs])
    for function in (product, torch_jax.jit(product)):
        actual = function(x, weight.transpose(1, 2), offs)
        assert_same(actual, expected)
        gradients = torch.autograd.grad(actual.square().sum(), (x, weight))
        assert_same(gradients, wanted, strides=False)
