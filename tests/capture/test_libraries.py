"""Programs of libraries under ``torch_jax.jit``: packed sequences, graphs, caches of models."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_jax
from tests.support.compare import assert_same
from tests.support.jitted import both

pytestmark = pytest.mark.slow


def _assert_steps_agree(module, step, calls):
    """Results and gradients of ``step(module, ...)`` over changing arguments."""
    on_device = copy.deepcopy(module).to("jax")
    compiled = torch_jax.jit(lambda *args: step(on_device, *args))
    for args, moved in calls:
        module.zero_grad()
        on_device.zero_grad()
        assert_same(compiled(*moved), step(module, *args), strides=False)
        for ours, theirs in zip(on_device.parameters(), module.parameters(), strict=True):
            assert_same(ours.grad, theirs.grad, scale=8)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences_of_changing_lengths(kind):
    def step(module, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(module(packed)[0], batch_first=True)
        outputs.square().sum().backward()
        return outputs.detach()

    calls = []
    for lengths in ([2, 3, 1], [3, 2, 1], [2, 3, 1], [3, 1, 1]):
        x, lengths = torch.randn(3, 3, 2), torch.tensor(lengths)
        calls.append(((x, lengths), (x.to("jax"), lengths)))
    _assert_steps_agree(kind(2, 3, batch_first=True), step, calls)


@pytest.mark.parametrize("name", ["SAGEConv", "GCNConv", "GATConv"])
def test_convolutions_over_changing_graphs(name):
    import torch_geometric.nn as geometric

    def step(module, x, edges):
        found = module(x, edges)
        found.square().sum().backward()
        return found.detach()

    calls = []
    for nodes, count in ((6, 9), (6, 9), (5, 9), (6, 7)):
        x, edges = torch.randn(nodes, 4), torch.randint(nodes, (2, count))
        calls.append(((x, edges), (x.to("jax"), edges.to("jax"))))
    _assert_steps_agree(getattr(geometric, name)(4, 3), step, calls)


@both
@pytest.mark.filterwarnings("ignore:.*cannot skip its Python. it returns a DynamicCache")
def test_a_language_model_returns_its_cache(pure):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=32, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 32, (2, 6))
    with torch.no_grad():
        expected = [model(ids + i) for i in range(4)]
        torch_jax.jit(model.to("jax"), pure=pure)
        actual = [model((ids + i).to("jax")) for i in range(4)]
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.logits.cpu(), theirs.logits, rtol=1e-4, atol=1e-5)
        for mine, other in zip(ours.cache.layers, theirs.cache.layers, strict=True):
            torch.testing.assert_close(mine.keys.cpu(), other.keys, rtol=1e-4, atol=1e-5)
    assert len({id(one.cache) for one in actual}) == 4
