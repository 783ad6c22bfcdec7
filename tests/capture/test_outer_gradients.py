"""Backward passes outside of a pure function that compute indices again: recorded, and not run."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_jax
from tests.support.compare import assert_same


@pytest.mark.filterwarnings("error:.*(is not pure|cannot skip its Python)")
def test_indices_that_a_checkpoint_computes_again():
    torch.manual_seed(0)
    table = nn.Embedding(5, 3).to("jax")
    weight = torch.randn(3, 3, device="jax", requires_grad=True)
    scale, index = torch.arange(9.0, device="jax").view(3, 3), torch.tensor([1, 2, 4]).to("jax")

    def function(index: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda i: (table(i * 1) @ weight).sin(), index, use_reentrant=False)

    def gradients(run, index: torch.Tensor) -> list[torch.Tensor]:
        return torch.autograd.grad((run(index) * scale).sum(), (table.weight, weight))

    pure, recorded = torch_jax.jit(function, pure=True), torch_jax.jit(function)
    for number in range(4):
        at = (index + number) % 5
        expected = [one.cpu() for one in gradients(function, at)]
        assert_same(gradients(pure, at), expected)
        assert_same(gradients(recorded, at), expected)
    assert pure.explain().observed == 1
    shown = torch_jax.lower(function, index)
    assert "gather" in shown.as_text()
