"""Sixteen threads that enable, disable, nest, move, compile, throw and compute at random.

Each thread draws its steps from a generator of its own, so that a failure can be run again; how
the threads interleave is up to the machine. Whatever the others do, each result is the CPU's.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax

env = torch_jax.default_env()
THREADS = 16
STEPS: dict[str, Callable[[Worker], None]] = {}


class Thrown(Exception):
    """What a step throws on purpose."""


def step(function: Callable) -> Callable:
    """Enter a step in the list that threads draw from."""
    STEPS[function.__name__] = function
    return function


def model(seed: int) -> nn.Module:
    """A small model on the CPU, the same for the same seed."""
    generator = torch.Generator("cpu").manual_seed(seed)
    made = nn.Sequential(nn.Linear(6, 6, device="cpu"), nn.ReLU(), nn.Linear(6, 3, device="cpu"))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(generator=generator)
    return made


class Shared:
    """What all threads use: a model on jax that nobody changes, and its twin on the CPU."""

    def __init__(self) -> None:
        self.twin = model(0).requires_grad_(False)
        self.model = copy.deepcopy(self.twin).to("jax")
        self.compiled = torch_jax.jit(copy.deepcopy(self.twin).to("jax"))


class Worker:
    """One thread: its dice, its model that it moves about, and the model's twin on the CPU."""

    def __init__(self, number: int, shared: Shared):
        self.random, self.shared = random.Random(number), shared
        self.generator = torch.Generator("cpu").manual_seed(number)
        self.twin, self.depth = model(number), 0
        self.model = copy.deepcopy(self.twin)
        self.optimizers = [torch.optim.SGD(m.parameters(), 0.05) for m in (self.twin, self.model)]
        self.compiled = torch_jax.jit(lambda x: F.gelu(self.model(x)).sum(0))

    def numbers(self, *shape: int) -> torch.Tensor:
        """Numbers on the CPU, whatever the default device is."""
        return torch.empty(shape, device="cpu").normal_(generator=self.generator)

    def check(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """A result is the CPU's."""
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)

    def run(self, count: int) -> None:
        """Take so many steps."""
        for _ in range(count):
            STEPS[self.random.choice(sorted(STEPS))](self)
        self.model.to("cpu")
        for mine, theirs in zip(self.model.parameters(), self.twin.parameters(), strict=True):
            self.check(mine, theirs)


@step
def enable(worker: Worker) -> None:
    env.enable_globally()


@step
def disable(worker: Worker) -> None:
    env.disable_globally()


@step
def nest(worker: Worker) -> None:
    """Another step inside a region, where factories make jax tensors whatever others do."""
    if worker.depth > 3:
        return
    worker.depth += 1
    with env:
        assert torch.ones(2).device.type == "jax"
        STEPS[worker.random.choice(sorted(STEPS))](worker)
        assert env.enabled
        assert torch.zeros(2).device.type == "jax"
    worker.depth -= 1


@step
def decorated(worker: Worker) -> None:
    @env
    def steps():
        yield torch.ones(2)
        yield torch.ones(2) * 2

    assert [one.device.type for one in steps()] == ["jax", "jax"]


@step
def throw(worker: Worker) -> None:
    with pytest.raises(Thrown), env, env.override(F.silu, lambda x, inplace=False: x * 2):
        x = worker.numbers(3)
        worker.check(F.silu(x.to("jax")), x * 2)
        raise Thrown


@step
def throw_in_a_compiled_function(worker: Worker) -> None:
    @torch_jax.jit  # other threads change settings meanwhile
    def failing(x):
        worker.shared.model(x)
        raise Thrown

    with pytest.raises(Thrown):
        failing(worker.numbers(2, 6).to("jax"))


@step
def move(worker: Worker) -> None:
    worker.model.to(worker.random.choice(["cpu", "jax"]))


@step
def compute(worker: Worker) -> None:
    x = worker.numbers(4, 6)
    worker.check(worker.model(x.to(worker.model[0].weight.device)), worker.twin(x))


@step
def train(worker: Worker) -> None:
    x = worker.numbers(4, 6)
    for one, optimizer in zip((worker.twin, worker.model), worker.optimizers, strict=True):
        optimizer.zero_grad()
        one(x.to(one[0].weight.device)).square().mean().backward()
        optimizer.step()


@step
def compile_mine(worker: Worker) -> None:
    worker.model.to("jax")
    x = worker.numbers(4, 6)
    worker.check(worker.compiled(x.to("jax")), F.gelu(worker.twin(x)).sum(0))


@step
def compile_shared(worker: Worker) -> None:
    """A new function of weights that other threads are using."""
    x, factor = worker.numbers(2, 6), worker.random.random()
    function = torch_jax.jit(lambda x: worker.shared.model(x) * factor)
    worker.check(function(x.to("jax")), worker.shared.twin(x) * factor)


@step
def call_shared(worker: Worker) -> None:
    x = worker.numbers(2, 6)
    expected = worker.shared.twin(x)
    worker.check(worker.shared.compiled(x.to("jax")), expected)
    worker.check(worker.shared.model(x.to("jax")), expected)


@step
def override(worker: Worker) -> None:
    """An override of this thread's own."""
    x, factor = worker.numbers(3), worker.random.random()
    with env.override("aten::relu", lambda x: x * factor, takes="torch"):
        worker.check(torch.relu(x.to("jax")), x * factor)
    worker.check(torch.relu(x.to("jax")), torch.relu(x))


@step
def autocast(worker: Worker) -> None:
    x = worker.numbers(4, 6)
    with torch.autocast("jax", dtype=torch.bfloat16):
        assert worker.shared.model(x.to("jax")).dtype is torch.bfloat16
    assert worker.shared.model(x.to("jax")).dtype is torch.float32


@step
def draw(worker: Worker) -> None:
    """A generator of one's own gives the same numbers whatever other threads draw."""
    seed = worker.random.randrange(1000)
    numbers = [
        torch.rand(4, device="jax", generator=torch.Generator("jax").manual_seed(seed)).cpu()
        for _ in range(2)
    ]
    assert torch.equal(*numbers)
    dropped = F.dropout(torch.ones(8, device="jax"), 0.5).cpu()
    assert set(dropped.tolist()) <= {0.0, 2.0}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [12, pytest.param(80, marks=pytest.mark.slow)])
def test_threads_at_random(steps):
    shared, failures, others = Shared(), [], env.overrides()

    def run(number: int) -> None:
        try:
            Worker(number, shared).run(steps)
        except BaseException as error:
            error.add_note(f"in thread {number}")
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    finally:
        env.disable_globally()
    if failures:
        raise failures[0]
    assert torch.ones(1).device.type == "cpu"
    assert env.overrides() == others
