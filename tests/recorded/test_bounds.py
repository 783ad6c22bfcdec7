"""Indices that a graph has made itself are proven to be in range; others are read."""

from __future__ import annotations

import pytest
import torch

import torch_jax
from tests.support.compare import assert_same
from tests.support.lazily import counted

PROVEN = {
    "argmax": lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    "max": lambda x: x.gather(1, x.max(1, keepdim=True).indices),
    "topk": lambda x: x.gather(1, x.topk(2).indices),
    "sort": lambda x: x.gather(1, x.argsort(1)),
    "arange": lambda x: x[torch.arange(3, device=x.device)],
    "flipped": lambda x: x[torch.arange(3, device=x.device).flip(0)],
    "joined": lambda x: x[torch.cat([x.argmin(0), x.argmax(0)])],
    "chosen": lambda x: x[torch.where(x[:, 0] > 0, x.argmin(0)[:3], x.argmax(0)[:3])],
    "narrower": lambda x: x[x.argmax(0).int()],
    "permutation": lambda x: x[torch.randperm(3, device=x.device)].sum(),
    "of a mask": lambda x: x[(x[:, 0] > 0).long()],
    "product": lambda x: x[x.argmax(0) * 0],
    "rows of the flat": lambda x: x.index_select(0, x.view(-1).topk(2).indices // 4),
    "columns of the flat": lambda x: x.index_select(1, x.view(-1).topk(2).indices % 4),
    "gathered": lambda x: x[x.argmax(0)[x.argsort(1)[0]]],
}
ASKED = {
    "sum": lambda x: x[x.argmax(0) + x.argmin(0) - x.argmin(0)],
    "rounded": lambda x: x[(x[:, 0] * 0).long()],
}
# of an array and of integers that the graph is given
MIXED = {
    "a sum": lambda x, at: x[x.long() + at],
    "a product": lambda x, at: x[at * x.long()],
}
WRONG = {
    "too large": lambda x: x[x.argmax(0) + 1],
    "of more": lambda x: x[:2][x.t().argmax(0)],
    "negative": lambda x: x.gather(1, x.argmax(1, keepdim=True) - 4),
    "wrapped": lambda x: x[(x.argmax(0) + 255).to(torch.int8)],
}


@pytest.mark.parametrize("name", [*PROVEN, *ASKED])
def test_what_is_proven_is_not_looked_at(name):
    function = (PROVEN | ASKED)[name]
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    y = x.to("jax")
    with torch_jax.lazy():
        with counted() as did:
            result = function(y + 0)
        assert did.graphs == (name in ASKED)
    assert_same(result, function(x), strides=False)


@pytest.mark.parametrize("index", [lambda at: at, lambda at: (at[1:] + 1) * 2 - at[:-1] - 1])
@pytest.mark.parametrize("of", [lambda x: x, lambda x: x.t()[1], lambda x: x[:, None]])
def test_of_a_window_only_its_own_elements_are_looked_at(of, index):
    """A batch of a long text: others are no matter, and to look at all would take long."""
    weight = torch.arange(20.0)
    whole = torch.full((40, 2), 99)
    whole[10:30] = torch.arange(40).reshape(20, 2) % 8
    compiled = torch_jax.jit(lambda at: weight.to("jax")[index(at)] + 1)
    text = of(whole.to("jax"))
    with counted() as did:
        for start in (10, 12, 26, 27):
            window = of(whole)[start : start + 3]
            assert_same(compiled(text[start : start + 3]), weight[index(window)] + 1, strides=False)
    assert did.graphs == 4
    for start in (28, 8):
        with pytest.raises(IndexError):
            compiled(text[start : start + 3]).cpu()


@pytest.mark.parametrize("function", MIXED.values(), ids=MIXED)
def test_indices_of_integers_and_other_values(function):
    x, at = torch.tensor([0.0, 2.0, 1.0]), torch.tensor([0, -1, 1])
    compiled = torch_jax.jit(function)
    for _ in range(4):
        assert_same(compiled(x.to("jax"), at.to("jax")), function(x, at), strides=False)


@pytest.mark.parametrize("function", WRONG.values(), ids=WRONG)
def test_what_is_out_of_range_raises_at_the_call(function):
    x = torch.eye(3, 4).flip(0)
    with pytest.raises((IndexError, RuntimeError)) as expected:
        function(x)
    with torch_jax.lazy(), pytest.raises(expected.type):
        function(x.to("jax") + 0)


def test_labels_of_which_some_mean_ignore_are_checked_without_the_graph():
    scores = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    for label in (-100, 4, -100, 3):
        labels = torch.tensor([0, 1, 2, 3, 4, 0, label])
        with torch_jax.lazy():
            with counted() as did:
                loss = torch.nn.functional.cross_entropy(scores.to("jax") * 2, labels.to("jax")[1:])
            assert did.graphs == 0
        assert_same(loss, torch.nn.functional.cross_entropy(scores * 2, labels[1:]))
    with torch_jax.lazy(), pytest.raises(IndexError, match="out of bounds"):
        torch.nn.functional.cross_entropy(scores.to("jax"), (labels.to("jax") + 2)[1:])
