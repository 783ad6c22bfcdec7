"""What surprises users of lazy executors, and what happens here: the table of docs/lazy.md."""

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

STEPS = 8
ROOT = Path(__file__).parents[2]


def model(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *more, nn.Linear(8, 3))


class Loop:
    """A training loop on the device, and on the CPU for comparison."""

    def __init__(self, *more: nn.Module, rate: float = 0.1):
        self.expected, self.model = model(*more), model(*more).to("jax")
        self.optimizer, self.host_optimizer = (
            torch.optim.SGD(one.parameters(), lr=rate) for one in (self.model, self.expected)
        )
        self.last: torch.Tensor | None = None

    def step(self, n: int, size: int = 4) -> torch.Tensor:
        """A step; the loss."""
        numbers = torch.Generator().manual_seed(n)
        x = torch.randn(size, 6, generator=numbers)
        y = torch.randint(3, (size,), generator=numbers)
        for network, optimizer, device in (
            (self.expected, self.host_optimizer, "cpu"),
            (self.model, self.optimizer, "jax"),
        ):
            optimizer.zero_grad()
            loss = F.cross_entropy(network(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        return loss.detach()

    def check(self) -> None:
        """Both have learned the same."""
        actual, expected = self.model.state_dict(), self.expected.state_dict()
        assert_same(list(actual.values()), list(expected.values()), scale=10)


@pytest.fixture
def loop():
    return Loop()


@pytest.mark.slow
def test_no_mark_step_is_cut_with_a_warning(loop, monkeypatch):
    """A loop that never syncs."""
    monkeypatch.setattr("torch_jax.recorded.lazy._warned", [])
    before = torch_jax.config.get("lazy_operators")
    torch_jax.config.set("lazy_operators", 30)
    try:
        with counted() as did, pytest.warns(UserWarning) as told, torch_jax.lazy():
            for n in range(STEPS):
                loop.step(n)
    finally:
        torch_jax.config.set("lazy_operators", before)
    (warning,) = (str(one.message) for one in told if "without a torch_jax.sync()" in str(one))
    assert f"{__file__}:" in warning and "DeviceLoader" in warning
    assert did.graphs >= 4
    loop.check()


@pytest.mark.slow
def test_printing_in_the_loop_runs_what_it_needs_and_is_counted(loop):
    """``print(loss)``."""
    with counted() as did, torch_jax.lazy():
        for n in range(STEPS):
            print(loop.step(n))
            torch_jax.sync()
    assert did.compiles == 1 and did.early == STEPS
    (line,) = did.lines
    assert "test_printing_in_the_loop" in line and __file__ in line
    loop.check()


@pytest.mark.slow
def test_a_branch_on_a_value_is_taken_as_eager_code_takes_it(loop):
    """``if loss < x``."""
    ways = []
    with torch_jax.lazy():
        for n in range(STEPS):
            loss = loop.step(n)
            ways.append(bool(loss < 1.05))
            if ways[-1]:
                for p in (*loop.model.parameters(), *loop.expected.parameters()):
                    p.data.mul_(0.99)
            torch_jax.sync()
    assert len(set(ways)) == 2
    loop.check()
    with counted() as did, torch_jax.lazy():
        for n in range(STEPS):
            if loop.step(n) < 1.05:
                loop.model[0].weight.data.mul_(0.99)
            torch_jax.sync()
    assert did.compiles <= 3  # a step, each of the ways


def test_a_changing_learning_rate_is_an_input(loop):
    schedules = [
        torch.optim.lr_scheduler.ExponentialLR(one, 0.9)
        for one in (loop.optimizer, loop.host_optimizer)
    ]
    with counted() as did, torch_jax.lazy():
        for n in range(STEPS):
            loop.step(n)
            for schedule in schedules:
                schedule.step()
            torch_jax.sync()
    assert did.compiles == 1 and did.early == 0
    loop.check()


@pytest.mark.slow
def test_a_smaller_last_batch_is_one_more_program(loop):
    with counted() as did, torch_jax.lazy():
        for epoch in range(2):
            for n in range(STEPS):
                loop.step(n + epoch * STEPS, 4 if n < STEPS - 1 else 2)
                torch_jax.sync()
    assert did.compiles == 2
    assert "float32[2,6], was float32[4,6]" in did.explanations[1]
    loop.check()


def test_item_for_logging_after_the_sync_splits_nothing(loop):
    """``.item()`` of a loss that was computed by then."""
    losses: list[float] = []
    with counted() as did, torch_jax.lazy():
        for n in range(STEPS):
            loss = loop.step(n)
            torch_jax.sync()
            losses.append(loss.item())
    assert did.compiles == 1 and did.graphs == STEPS and did.early == 0
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_item_for_logging_before_the_sync_costs_no_more_programs(loop):
    with counted() as did, torch_jax.lazy():
        total = 0.0
        for n in range(STEPS):
            total += loop.step(n).item()
            torch_jax.sync()
    assert did.compiles == 1 and did.early == STEPS


@pytest.mark.slow
def test_a_kept_loss_is_one_more_program_at_most(loop):
    """A logger that keeps every third loss, and looks at it later."""
    kept = []
    with counted() as did, torch_jax.lazy():
        for n in range(2 * STEPS):
            loss = loop.step(n)
            if n % 3 == 2:
                kept.append(loss)
            del loss
            torch_jax.sync()
    assert did.compiles == 2 and all(one.item() > 0 for one in kept)


def test_writes_to_slices_are_two_programs_wherever_they_are():
    rows, expected = torch.zeros(16, 3, device="jax"), torch.zeros(16, 3)
    with counted() as did, torch_jax.lazy():
        for n in range(STEPS):
            for one in (rows, expected):
                one[n] += n
                one[n + 1 : n + 4].mul_(2).add_(1)
            torch_jax.sync()
    assert_same(rows, expected)
    assert did.compiles == 2  # the second takes the places as inputs
    assert "inputs from now on" in did.explanations[1]


def test_dropout_draws_anew_and_as_eagerly():
    layer, x = nn.Dropout(0.5), torch.ones(64, device="jax")
    torch.manual_seed(3)
    expected = [layer(x).tolist() for _ in range(STEPS)]
    torch.manual_seed(3)
    with counted() as did, torch_jax.lazy():
        actual = []
        for _ in range(STEPS):
            actual.append(layer(x))
            torch_jax.sync()
    assert [one.tolist() for one in actual] == expected
    assert did.compiles == 1 and expected[0] != expected[1]


@pytest.mark.slow
def test_a_growing_sequence_is_a_program_for_each_length_said_why():
    w = torch.eye(3, device="jax")
    with counted() as did, torch_jax.lazy():
        sequence = torch.ones(1, 3).to("jax")
        for _ in range(4):
            sequence = torch.cat([sequence, sequence[-1:] @ w])
            torch_jax.sync()
    assert sequence.tolist() == [[1.0] * 3] * 5
    assert did.compiles == 4
    assert all("[" in why and ", was " in why for why in did.explanations[2:])
    with counted() as did, torch_jax.lazy():  # the lengths come again
        sequence = torch.ones(1, 3).to("jax")
        for _ in range(4):
            sequence = torch.cat([sequence, sequence[-1:] @ w])
            torch_jax.sync()
    assert did.compiles == 0


def test_sizes_that_hang_on_values_are_asked_for():
    """``torch.nonzero``."""
    with counted() as did, torch_jax.lazy():
        x = torch.tensor([0.0, 2.0, 0.0, 3.0]).to("jax") * 2
        found = x.nonzero()
        chosen = x[x > 1]
        assert found.shape == (2, 1) and chosen.shape == (2,)
    assert found.tolist() == [[1], [3]] and chosen.tolist() == [4, 6]
    assert did.early == 2 and all("test_sizes_that_hang" in line for line in did.lines)


def test_python_numbers_are_inputs():
    x = torch.ones(3, device="jax")
    with counted() as did, torch_jax.lazy():
        for n in range(STEPS):
            y = x * n + random.random()
            torch_jax.sync()
    assert did.compiles == 1 and y.shape == (3,)


def test_the_page_has_a_row_for_each():
    """Each row names its test, and each name is one."""
    page = (ROOT / "docs" / "lazy.md").read_text()
    named = {word.strip("`") for word in page.split() if word.startswith("`test_")}
    tests = {name for name in globals() if name.startswith("test_")} - {
        "test_the_page_has_a_row_for_each"
    }
    assert named == tests
