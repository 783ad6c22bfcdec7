"""Checks for which an accelerator does not wait: the error comes with the next wait."""

import pytest
import torch
from torch.nn import functional as F

import torch_jax
from tests.support import executors
from torch_jax import budgets, target
from torch_jax.memory import flags

CALLS = {
    "an index": lambda x, at: x[at],
    "an embedding": lambda x, at: F.embedding(at, x[:, None]),
    "a label": lambda x, at: F.cross_entropy(x[None], at[:1] + 4),
    "a write": lambda x, at: x.clone().index_add_(0, at, at.float()),
}


@pytest.fixture(autouse=True)
def on_an_accelerator(monkeypatch, nothing_is_remembered, eager_by_xla):
    monkeypatch.setattr(target, "platform", lambda: "tpu")
    yield
    flags._late.clear()
    flags._asked.clear()


@pytest.mark.parametrize(
    ("case", "executor"),
    [*((case, "eager") for case in CALLS), ("a label", "jit"), ("a write", "pure"),
     *(("an index", executor) for executor in ("lazy", "jit", "pure", "graph"))],
)  # fmt: skip
def test_the_next_wait_raises(case, executor):
    def call(x, at):
        return CALLS[case](x, at) * 1

    ways = {"pure": torch_jax.jit(pure=True)}
    run = ways[executor](call) if executor in ways else executors.by(executor, call)
    x = torch.arange(5.0, device="jax")
    good, bad = (torch.tensor(at, device="jax") for at in ([0, 4], [1, 7]))
    assert torch.isfinite(run(x, good if case != "a label" else good[:1])).all()
    kind = RuntimeError if case == "a write" else IndexError  # as on the CPU
    with pytest.raises(kind, match="in an earlier call"):
        y = run(x, bad)
        y.sum().item()
    assert run(x, good if case != "a label" else good[:1]).isfinite().all().item()  # raised once


def test_synchronize_raises():
    x = torch.arange(5.0, device="jax")
    y = x[torch.tensor([9], device="jax")]
    with pytest.raises(IndexError, match="out of bounds"):
        torch.jax.synchronize()
    assert y.isnan().item()


def test_a_false_flag_among_many_is_found():
    x, at = torch.arange(5.0, device="jax"), torch.tensor([1], device="jax")
    for shift in (*range(3), 9, *range(3)):
        x[at + shift]
    with pytest.raises(IndexError, match="dimension 0 with size 5"):
        x.sum().item()
    assert x[at].item() == 1


def test_flags_that_are_right_are_forgotten():
    x, at = torch.arange(5.0, device="jax"), torch.tensor([1], device="jax")
    x[at].tolist()
    assert not flags._late
    assert not flags._asked
    for _ in range(3 * budgets.FLAGS_ASKED_TOGETHER):  # no wait of the user's between them
        x[at]
        for group, _ in flags._asked:
            group.block_until_ready()
    assert len(flags._late) < budgets.FLAGS_ASKED_TOGETHER
    assert len(flags._asked) <= 1


def test_flags_come_over_together():
    x, at = torch.arange(5.0, device="jax"), torch.tensor([1], device="jax")
    for _ in range(5):
        x[at]
    flags.ask()
    assert [len(some) for _, some in flags._asked] == [5]
