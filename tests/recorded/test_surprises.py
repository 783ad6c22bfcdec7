"""Surprises of lazy executors, and their effects here: the table of docs/jit.md."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_jax
from tests.support.compare import assert_same
from tests.support.lazily import counted
from torch_jax import config

STEPS = 8
ROOT = Path(__file__).parents[2]


class Loop:
    """A training loop on the device, and on the CPU for comparison."""

    def __init__(self):
        self.models = [self.model("jax"), self.model("cpu")]
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in self.models]

    def model(self, device):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)

    def step(self, n, size=4):
        """A step; the loss."""
        numbers, losses = torch.Generator().manual_seed(n), []
        x = torch.randn(size, 6, generator=numbers)
        y = torch.randint(3, (size,), generator=numbers)
        for model, optimizer, device in zip(
            self.models, self.optimizers, ("jax", "cpu"), strict=True
        ):
            optimizer.zero_grad()
            losses.append(F.cross_entropy(model(x.to(device)), y.to(device)))
            losses[-1].backward()
            optimizer.step()
        return losses[0].detach()

    def run(self, after=lambda n, loss: None, sizes=(4,) * STEPS, before_sync=True):
        """Some steps, with what is done after each; what was recorded."""
        with counted() as did, torch_jax.lazy():
            for n, size in enumerate(sizes):
                loss = self.step(n, size)
                if before_sync:
                    after(n, loss)
                    del loss
                torch_jax.sync()
                if not before_sync:
                    after(n, loss)
        actual, expected = (list(one.state_dict().values()) for one in self.models)
        assert_same(actual, expected, scale=10)
        return did


@pytest.fixture
def loop():
    return Loop()


def run(step):
    """Steps, each of which ends in a sync; what was recorded."""
    with counted() as did, torch_jax.lazy():
        for n in range(STEPS):
            step(n)
            torch_jax.sync()
    return did


@pytest.mark.slow
def test_no_mark_step_is_cut_with_a_warning(loop, monkeypatch):
    monkeypatch.setattr("torch_jax.recorded.recorder._warned", [])
    monkeypatch.setattr(torch_jax, "sync", lambda: None)
    with config.temporarily("lazy_operators", 20), pytest.warns(UserWarning) as told:
        did = loop.run()
    (warning,) = (str(one.message) for one in told if "without a torch_jax.sync()" in str(one))
    assert f"{__file__}:" in warning and "DeviceLoader" in warning
    assert did.graphs >= 4


@pytest.mark.slow
def test_printing_in_the_loop_runs_what_it_needs_and_is_counted(loop):
    def printing(n, loss):
        print(loss)

    did = loop.run(printing)
    assert did.compiles == 1 and did.early == STEPS
    (line,) = did.lines
    assert "in printing" in line and __file__ in line


@pytest.mark.slow
def test_a_branch_on_a_value_is_taken_as_eager_code_takes_it(loop):
    ways = set()

    def after(n, loss):
        way = bool(loss < 1.05)
        if way:
            for model in loop.models:
                model[0].weight.data.mul_(0.99)
        ways.add(way)

    did = loop.run(after)
    assert len(ways) == 2 and did.compiles <= 3  # a step, each of the ways


def test_a_changing_learning_rate_is_an_input(loop):
    rates = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in loop.optimizers]
    did = loop.run(lambda n, loss: [one.step() for one in rates])
    assert did.compiles == 1 and did.early == 0


@pytest.mark.slow
def test_a_smaller_last_batch_is_one_more_program(loop):
    did = loop.run(sizes=2 * ((4,) * (STEPS - 1) + (2,)))
    assert did.compiles == 2
    assert "float32[2,6], was float32[4,6]" in did.explanations[1]


def test_item_for_logging_after_the_sync_splits_nothing(loop):
    losses: list[float] = []
    did = loop.run(lambda n, loss: losses.append(loss.item()), before_sync=False)
    assert did.compiles == 1 and did.graphs == STEPS and did.early == 0
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_item_for_logging_before_the_sync_costs_no_more_programs(loop):
    did = loop.run(lambda n, loss: loss.item())
    assert did.compiles == 1 and did.early == STEPS


@pytest.mark.slow
def test_a_kept_loss_is_one_more_program_at_most(loop):
    kept = []
    did = loop.run(lambda n, loss: kept.append(loss) if n % 3 == 2 else None, (4,) * STEPS * 2)
    assert did.compiles == 2 and all(one.item() > 0 for one in kept)


def test_writes_to_slices_are_two_programs_wherever_they_are():
    rows = torch.zeros(16, 3, device="jax"), torch.zeros(16, 3)

    def step(n):
        for one in rows:
            one[n] += n
            one[n + 1 : n + 4].mul_(2).add_(1)

    did = run(step)
    assert_same(*rows)
    assert did.compiles == 2  # the second takes the places as inputs
    assert "inputs from now on" in did.explanations[1]


def test_dropout_draws_anew_and_as_eagerly():
    layer, x, actual = nn.Dropout(0.5), torch.ones(64, device="jax"), []
    torch.manual_seed(3)
    expected = [layer(x).tolist() for _ in range(STEPS)]
    torch.manual_seed(3)
    did = run(lambda n: actual.append(layer(x)))
    assert [one.tolist() for one in actual] == expected
    assert did.compiles == 1 and expected[0] != expected[1]


@pytest.mark.slow
def test_a_growing_sequence_is_a_program_for_each_length_said_why():
    w, grown = torch.eye(3, device="jax"), {}

    def step(n):
        last = torch.ones(1, 3).to("jax") if n % 4 == 0 else grown["sequence"]
        grown["sequence"] = torch.cat([last, last[-1:] @ w])

    did = run(step)  # the lengths come twice
    assert grown["sequence"].tolist() == [[1.0] * 3] * 5
    assert did.compiles == 4
    assert all("[" in why and ", was " in why for why in did.explanations[2:])


def test_sizes_that_hang_on_values_are_asked_for():
    with counted() as did, torch_jax.lazy():
        x = torch.tensor([0.0, 2.0, 0.0, 3.0]).to("jax") * 2
        found = x.nonzero()
        chosen = x[x > 1]
        assert found.shape == (2, 1) and chosen.shape == (2,)
    assert found.tolist() == [[1], [3]] and chosen.tolist() == [4, 6]
    assert did.early == 2 and all("test_sizes_that_hang" in line for line in did.lines)


def test_python_numbers_are_inputs():
    x, kept = torch.ones(3, device="jax"), {}
    did = run(lambda n: kept.update(y=x * n + random.random()))
    assert did.compiles == 1 and kept["y"].shape == (3,)


def test_equal_numbers_that_differ_later_are_one_more_program():
    x, kept = torch.ones(3, device="jax"), {}
    did = run(lambda n: kept.update(y=(x + 0.25).sin() + (0.25 if n < 3 else n / 3)))
    assert did.compiles == 2 and kept["y"].shape == (3,)


def test_the_page_has_a_row_for_each():
    """A comment at the table names the tests of its rows, and each name is one."""
    page = (ROOT / "docs" / "jit.md").read_text()
    named = {word.strip("`") for word in page.split() if word.startswith("`test_")}
    tests = {name for name in globals() if name.startswith("test_")}
    assert named == tests - {"test_the_page_has_a_row_for_each"}
