"""Programs of libraries under ``torch_jax.jit``: packed sequences and graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_jax
from tests.support.compare import assert_same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences_of_changing_lengths(kind):
    torch.manual_seed(0)
    model, x = kind(2, 3, batch_first=True), torch.randn(3, 3, 2)

    def outputs(x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(model(packed)[0], batch_first=True)[0]

    _assert_steps_agree(
        model, outputs, [(x, torch.tensor(n)) for n in ([2, 3, 1], [3, 2, 1], [2, 3, 1], [3, 1, 1])]
    )


@pytest.mark.parametrize("pure", [False, True])
def test_what_a_score_function_of_flex_attention_holds_is_trained(pure):
    x, weight = torch.randn(1, 2, 4, 8, device="jax"), torch.ones(2, device="jax").requires_grad_()

    def gradient(x):
        result = flex_attention(x, x, x, score_mod=lambda s, b, h, i, j: s + weight[h] * (i - j))
        result.square().sum().backward()
        grad, weight.grad = weight.grad, None
        return grad

    compiled = torch_jax.jit(gradient, pure=pure)
    expected = gradient(x)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("name", ["SAGEConv", "GCNConv", "GATConv"])
def test_convolutions_over_changing_graphs(name):
    import torch_geometric.nn as geometric

    torch.manual_seed(0)
    model = getattr(geometric, name)(4, 3)
    forms = ((6, 9), (6, 9), (5, 9), (6, 7))
    calls = [(torch.randn(n, 4), torch.randint(n, (2, edges))) for n, edges in forms]
    _assert_steps_agree(model, model, calls, moved=2)


def _assert_steps_agree(model, function, calls, moved=1):
    """Results and gradients, over arguments of which so many are on the device."""

    def step(*args):
        model.zero_grad()
        result = function(*args)
        result.square().sum().backward()
        return result.detach(), [p.grad.clone() for p in model.parameters()]

    expected = [step(*args) for args in calls]
    model.to("jax")
    compiled = torch_jax.jit(step)
    for args, (result, gradients) in zip(calls, expected, strict=True):
        ours = compiled(*(arg.to("jax") for arg in args[:moved]), *args[moved:])
        assert_same(ours[0], result, strides=False)
        assert_same(ours[1], gradients, scale=8)
