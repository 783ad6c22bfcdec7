"""The memory of recordings is bounded, and garbage makes no programs."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.lazily import counted
from torch_jax import config
from torch_jax.core.active import ACTIVE
from torch_jax.recorded import path
from torch_jax.recorded.path import ROOT, State


def states() -> list[State]:
    """All that can be reached."""
    found, left = [], [ROOT]
    while left:
        found.append(left.pop())
        left += found[-1].after.values()
    return found


def programs() -> list[int]:
    """How many programs each graph has."""
    return [len(state.programs) for state in states() if state.programs]


def chain(x: torch.Tensor, length: int) -> torch.Tensor:
    for _ in range(length):
        x = x + 1
    return x


def test_states_are_counted():
    before = State.count
    with torch_jax.lazy():
        x = chain(torch.ones(2).to("jax"), 10)
    assert State.count - before == 11 == len(states()) - 1  # an array is given first
    assert x.tolist() == [11, 11]


def test_paths_are_forgotten_those_first_that_ran_long_ago():
    x, always = torch.zeros(2).to("jax"), []
    with config.temporarily("lazy_states", 60):
        for length in range(1, 20):
            with torch_jax.lazy():
                assert chain(x, length).tolist() == [length] * 2
            with counted() as did, torch_jax.lazy():
                y = (x * 2).relu() * 3
            always.append(did.compiles)
            assert y.tolist() == [0, 0]
            assert max(State.count, len(states())) <= 60 + 22
    assert always == [1] + [0] * 18  # the graph that is run all the time is known all the time


@pytest.mark.parametrize("forget", [path.forget, lambda: config.set("matmul_precision", "high")])
def test_a_recording_under_way_goes_on_where_its_path_is_forgotten(forget):
    with config.temporarily("matmul_precision", "highest"), torch_jax.lazy():
        x = chain(torch.ones(2).to("jax"), 5)
        forget()
        x = chain(x, 5)
        torch_jax.sync()
        assert x.tolist() == [11, 11]
        x = chain(x, 5)
    assert x.tolist() == [16, 16]


@pytest.mark.slow
def test_programs_are_bounded():
    x = torch.zeros(2).to("jax")
    with config.temporarily("lazy_programs", 4):
        for length in range(1, 12):
            with torch_jax.lazy():
                y = chain(x, length)
            assert y.tolist() == [length] * 2
            assert sum(programs()) <= 4
        with counted() as did, torch_jax.lazy():
            y = chain(x, 1)
    assert did.compiles == 1 and y.tolist() == [1, 1]
    assert "lazy_programs" in did.explanations[0]


# --- garbage --------------------------------------------------------------------------------------


class Cycle:
    """Holds a tensor until Python collects garbage."""

    def __init__(self, tensor: torch.Tensor):
        self.me, self.tensor = self, tensor


def step(x: torch.Tensor, chance: random.Random, logged: list[torch.Tensor]) -> torch.Tensor:
    for n in range(12):
        x = (x * 0.5).tanh()
        Cycle(x * 2)
        if chance.random() < 0.1:
            gc.collect()
        if n == 6:
            logged.append(x.sum())
    return x


@pytest.fixture
def collector() -> Iterator[None]:
    """Python's, by hand, and quick: what is there now is left alone."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.slow
def test_garbage_makes_no_programs(collector):
    """The collector runs at random moments, and a logger keeps a loss for a while."""
    chance, logged = random.Random(0), []
    x, expected = torch.ones(4).to("jax"), torch.ones(4)
    with counted() as did, torch_jax.lazy():
        for _ in range(60):
            x = step(x, chance, logged)
            if chance.random() < 0.5:
                logged.clear()
            torch_jax.sync()
            assert max(programs(), default=0) <= 2
    assert did.compiles <= 6
    for _ in range(60):
        expected = step(expected, chance, [])
    torch.testing.assert_close(x.cpu(), expected)


@pytest.mark.slow
def test_garbage_is_collected_before_a_graph_is_compiled_again(collector):
    x = torch.ones(4).to("jax")
    with counted() as did, torch_jax.lazy():
        for collect in (gc.collect, gc.enable):
            for _ in range(3):
                Cycle(x * 2)
                x = x + 1
            collect()
            torch_jax.sync()
    assert did.compiles == 1 and x.tolist() == [7] * 4


@pytest.mark.slow
def test_a_model_that_is_garbage_is_freed():
    freed = []

    class Freed(nn.Linear):
        def __del__(self):
            freed.append(True)

    with torch_jax.lazy():
        for _ in range(3):
            layer = Freed(3, 3).to("jax")
            layer(torch.ones(2, 3).to("jax")).sum().backward()
            torch_jax.sync()
            del layer
        gc.collect()
    assert len(freed) == 3 and ACTIVE.recorder is None
