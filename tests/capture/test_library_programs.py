"""Programs of libraries whose Python is proven: packed sequences, block masks, graphs."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_jax
from tests.support.compare import assert_same
from torch_jax.capture.state.opcodes import doubt_of


def _assert_steps_agree(module, step, calls, function=torch_jax.jit):
    """Results and gradients of ``step(module, ...)``, compiled once, over changing arguments."""
    on_device = copy.deepcopy(module).to("jax")
    compiled = function(lambda *args: step(on_device, *args))
    for args, moved in calls:
        module.zero_grad()
        on_device.zero_grad()
        assert_same(compiled(*moved), step(module, *args), strides=False)
        for ours, theirs in zip(on_device.parameters(), module.parameters(), strict=True):
            assert_same(ours.grad, theirs.grad, scale=8)
    return compiled


@pytest.mark.slow
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


def test_a_value_of_the_host_comes_back_from_the_device():
    @torch_jax.jit
    def scaled(x, counts, factor):
        least = (counts.to("jax") * 2 + torch.arange(3, device="jax")).amin()
        return x[: least.item()] * factor, least.cpu() + 1

    x = torch.arange(8.0)
    for counts in ([1, 2, 3], [3, 2, 1], [2, 2, 3], [1, 2, 3]):
        least = min(2 * n + at for at, n in enumerate(counts))
        part, after = scaled(x.to("jax"), torch.tensor(counts), 2.0)
        assert_same(part, x[:least] * 2)
        assert after.item() == least + 1 and after.device.type == "cpu"


def test_a_value_of_the_device_is_asked_for_still():
    x, n = torch.ones(3, device="jax"), torch.tensor(2.0)
    kept = torch.ones(3, device="jax")
    for look in (
        lambda x, n: (x + n.to("jax")).cpu(),
        lambda x, n: x.cpu() + n,
        lambda x, n: (kept * n.to("jax")).tolist(),
        lambda x, n: (torch.rand(3, device="jax") * n.to("jax")).cpu(),
    ):
        with pytest.raises(torch_jax.DataDependentError, match="is asked for"):
            torch_jax.jit(look)(x, n)


def _raises(x):
    try:
        return x[0]
    except (IndexError, TypeError) as error:
        if len(x) > 2:
            raise ValueError("nothing there") from error
        raise error


def _goes_on(x):
    try:
        return x[0]
    except IndexError:
        return x


def _goes_round(x):
    for _ in range(3):
        try:
            x = x[0]
        except IndexError:
            continue
    return x


def test_handlers_that_only_raise_are_understood():
    assert doubt_of(_raises.__code__) is None
    for function in (_goes_on, _goes_round):
        assert "catches an exception" in str(doubt_of(function.__code__))


class _Marked(torch.Tensor):
    def __new__(cls, data):
        return torch.Tensor._make_subclass(cls, data)


def test_classes_of_tensors_may_be_asked_for_and_not_made():
    x = torch.ones(3, device="jax")
    asks = torch_jax.jit(lambda x: x + 1 if isinstance(x, _Marked) else x * 2)
    assert asks(x).tolist() == [2, 2, 2]
    for make in (lambda x: _Marked(x) + 1, lambda x: x.as_subclass(_Marked) + 1):
        with pytest.raises(torch_jax.NotTraceableError):
            torch_jax.jit(make)(x)


@pytest.mark.slow
def test_flex_attention_with_a_mask_made_inside(monkeypatch):
    """Lightning replaces ``torch.compile``, which ``flex_attention`` calls, when it is imported."""
    monkeypatch.setattr(torch, "compile", inspect.unwrap(torch.compile))
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def attend(query, least, width):
        def mask(_batch, _head, i, j):
            return (i >= j) & (i - j < width) & (j >= least)

        blocks = create_block_mask(mask, 1, 1, 16, 16, device=query.device, BLOCK_SIZE=8)
        return flex_attention(query, query, query, block_mask=blocks)

    x = torch.randn(1, 2, 16, 4)
    for compiled in (torch_jax.jit(attend), torch.compile(attend, backend="jax")):
        for least, width in ((0, 4), (3, 4), (3, 9), (0, 4)):
            least = torch.tensor(least)
            expected = attend(x, least, width)
            assert_same(compiled(x.to("jax"), least.to("jax"), width), expected, strides=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SAGEConv", "GCNConv", "GATConv"])
def test_convolutions_over_changing_graphs(name, monkeypatch):
    """Self-loops are found by values: a layer that adds them runs its Python at each call."""
    import torch_geometric.nn as geometric

    def step(module, x, edges):
        found = module(x, edges)
        found.square().sum().backward()
        return found.detach()

    calls = []
    for nodes, count in ((6, 9), (6, 9), (5, 9), (6, 7)):
        x, edges = torch.randn(nodes, 4), torch.randint(nodes, (2, count))
        calls.append(((x, edges), (x.to("jax"), edges.to("jax"))))
    options = {} if name == "SAGEConv" else {"add_self_loops": False}
    layer = getattr(geometric, name)(4, 3, **options)
    _assert_steps_agree(layer, step, calls)
    if options:
        with_loops = getattr(geometric, name)(4, 3)
        with torch_jax.config.temporarily("jit_fallback", "record"):
            compiled = _assert_steps_agree(with_loops, step, calls * 3)
        assert "needs values" in str(compiled.explain())
