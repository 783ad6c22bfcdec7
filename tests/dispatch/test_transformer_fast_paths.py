"""The fused inference operators of attention: queries that see no key are NaN, as on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.support.compare import assert_same

BLIND = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 1], [1, 0, 1, 0], [1, 1, 1, 1]]).bool()
PADDING = torch.tensor([[0, 1, 0, 0], [1, 1, 1, 1]]).bool()
MASKS = {
    "attention": {"attn_mask": BLIND},
    "padding": {"key_padding_mask": PADDING},
    "both": {"attn_mask": BLIND, "key_padding_mask": PADDING},
}


@pytest.mark.parametrize("case", MASKS)
@pytest.mark.parametrize("averaged", [True, False])
def test_queries_that_see_no_key(case, averaged):
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(4, 2, batch_first=True).eval(), torch.randn(2, 4, 4)

    def attend(device):
        masks = {name: mask.to(device) for name, mask in MASKS[case].items()}
        moved, y = copy.deepcopy(module).to(device), x.to(device)
        return moved(y, y, y, average_attn_weights=averaged, **masks)

    with torch.no_grad():
        actual, expected = attend("jax"), attend("cpu")
    assert torch.isnan(expected[0]).any() and not torch.isnan(expected[0]).all()
    assert_same(actual, expected, strides=False)
