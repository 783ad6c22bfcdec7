"""What ``torch_jax.jit`` refuses: with the user's line, what to do, and nothing changed."""

from __future__ import annotations

import copy
import datetime
import itertools
import random
import sys
import time
import types
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support.steps import step_of
from torch_jax import DataDependentError

ONES = torch.ones(3, device="jax")
COUNTER = itertools.count()
PYTHON, NUMPY = random.Random(0), np.random.default_rng(0)
TICKS = (float(i) for i in range(1000))


def _branch(x):
    return x if x.sum() > 0 else -x


def _loop(x):
    while x.sum() < 100:
        x = x * 2
    return x


def _shown(x):
    print(x)
    return x


def _said(x):
    print("hello")
    return x


def _next(x):
    return x * next(COUNTER)


VALUES = {
    "item": (lambda x: x * x.sum().item(), "torch.cond"),
    "float": (lambda x: x * float(x.sum()), "torch.where"),
    "tolist": (lambda x: x.tolist(), "return it"),
    "cpu": (lambda x: x.cpu(), "return it"),
    "numpy": (lambda x: x.cpu().numpy(), "return it"),
    "if": (_branch, "torch.cond"),
    "while": (_loop, "torch.cond"),
    "print a tensor": (_shown, ""),
    "nonzero": (lambda x: x.nonzero(), "torch.nonzero_static"),
    "mask": (lambda x: x[x > 0], "torch.where"),
    "unique": (torch.unique, "torch.sort"),
    "index": (lambda x: [1, 2, 3, 4][x.sum().long()], "return it"),
    "format": (lambda x: f"{x.sum():.3f}", ""),
    "slice": (lambda x: x[: x.sum().long()], ""),
}


@pytest.mark.parametrize("function, advice", VALUES.values(), ids=VALUES)
def test_values_of_tensors_are_refused_with_the_line_and_what_to_do(function, advice):
    compiled = torch_jax.jit(lambda x: function(x))
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            compiled(ONES)
        assert __file__ in str(caught.value)
        assert advice in str(caught.value)
    assert isinstance(caught.value, DataDependentError | torch_jax.NotTraceableError)


WORLD = {
    "print": _said,
    "random": lambda x: x * random.random(),
    "numpy's random": lambda x: x * np.random.rand(),
    "a generator of Python's": lambda x: x * PYTHON.random(),
    "a generator of NumPy's": lambda x: x * NUMPY.random(),
    "time": lambda x: x * time.time(),
    "perf_counter": lambda x: x * time.perf_counter(),
    "time_ns": lambda x: x * time.time_ns(),
    "datetime": lambda x: x * datetime.datetime.now().microsecond,
    "uuid": lambda x: x * uuid.uuid4().int % 97,
    "a counter": _next,
    "a generator": lambda x: x * next(TICKS),
}


@pytest.mark.parametrize("function", WORLD.values(), ids=WORLD)
def test_what_changes_by_itself_is_refused(function):
    with pytest.raises(RuntimeError) as caught:
        torch_jax.jit(lambda x: function(x))(ONES)
    assert isinstance(caught.value, torch_jax.NotTraceableError)
    assert "torch_jax.jit" in str(caught.value)


def test_python_random_numbers_are_as_before_a_refusal():
    random.seed(3)
    np.random.seed(3)
    with pytest.raises(RuntimeError):
        torch_jax.jit(lambda x: x * random.random() * np.random.rand())(ONES)
    after = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(3)
    assert after == (random.random(), np.random.rand())


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("kind", ["list", "generator", "loader"])
def test_an_iterator_of_batches_is_refused(device, kind):
    batches = [torch.ones(3, device=device) * i for i in range(4)]
    if kind == "loader":
        source: Any = iter(torch.utils.data.DataLoader(torch.arange(12.0).view(4, 3), 1))
    else:
        source = iter(batches) if kind == "list" else (b for b in batches)
    compiled = torch_jax.jit(lambda x: x + next(source).to("jax"))
    with pytest.raises(RuntimeError, match=r"argument|outside"):
        compiled(ONES)


def test_numpy_arrays_are_refused_as_arguments():
    with pytest.raises(TypeError, match="torch.from_numpy"):
        torch_jax.jit(lambda x: x)(np.ones(3))
    with pytest.raises(TypeError, match="torch.from_numpy"):
        torch_jax.jit(lambda batch: batch["x"])({"x": np.ones(3)})


def test_an_error_of_the_users_own_comes_through():
    @torch_jax.jit
    def function(x, scale):
        if scale < 0:
            raise ValueError(f"scale is {scale}")
        return x * scale

    assert function(ONES, 2).tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="scale is -1"):
        function(ONES, -1)
    assert function(ONES, 2).tolist() == [2, 2, 2]


def test_an_error_of_an_operator_comes_through():
    function = torch_jax.jit(lambda x, y: x @ y)
    with pytest.raises(RuntimeError):
        function(torch.ones(2, 3, device="jax"), torch.ones(2, 3, device="jax"))


def _swallowed(look: Callable) -> Callable:
    def function(x):
        try:
            look(x)
        except Exception:
            return x * 3
        return x * 2

    return function


@pytest.mark.parametrize(
    "look",
    [lambda x: x.sum().item(), lambda x: print("hello"), lambda x: time.time()],
    ids=["item", "print", "time"],
)
def test_a_refusal_cannot_be_swallowed(look):
    # The plain function would not have come to its ``except``.
    with pytest.raises(RuntimeError):
        torch_jax.jit(_swallowed(look))(ONES)


@pytest.mark.traced_at_once(fallback="record")
def test_an_error_that_the_function_handles_itself_is_no_refusal():
    def function(x):
        try:
            return x @ torch.ones(5, 5, device="jax")
        except RuntimeError:
            return x * 3

    compiled = torch_jax.jit(function)
    for _ in range(2):
        assert compiled(ONES).tolist() == [3, 3, 3]


def test_a_profiler_of_the_users_own_is_not_lost():
    seen = []

    def profile(frame, event, arg):
        seen.append(event)

    sys.setprofile(profile)
    try:
        torch_jax.jit(lambda x: x * 2)(ONES)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)


def test_a_watch_that_the_function_takes_away_is_missed():
    settings = types.SimpleNamespace(scale=2.0)

    def helper(x):
        return x * settings.scale

    def function(x):
        sys.setprofile(None)
        return helper(x)

    compiled = torch_jax.jit(function)
    try:
        first = compiled(ONES).tolist()
    except torch_jax.NotTraceableError:
        return
    assert first == [2, 2, 2]
    settings.scale = 3.0
    assert compiled(ONES).tolist() == [3, 3, 3]


# --- nothing has changed --------------------------------------------------------------------------


class World:
    """A training with state of every kind, whose step fails at its end."""

    def __init__(self, fail: Callable[[torch.Tensor], Any]):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to("jax")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.count, self.last = 0, None
        self.history: list = []
        self.settings = {"a": 1}
        self.on_cpu = torch.zeros(2)
        self.fail = fail

    def step(self, x):
        self.count += 1
        self.settings["b"] = self.count
        self.optimizer.zero_grad()
        loss = self.model(F.dropout(x, 0.5)).square().sum()
        self.last = loss
        self.history.append(loss)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.on_cpu += 1
        x.mul_(2)
        self.fail(loss)
        return loss

    def snapshot(self) -> dict[str, Any]:
        parameters = dict(self.model.named_parameters())
        values = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],
            "gradients": {name: p.grad for name, p in parameters.items()},
            "lr": self.optimizer.param_groups[0]["lr"],
            "epoch": self.scheduler.last_epoch,
            "count": self.count,
            "last": self.last,
            "history": list(self.history),
            "settings": dict(self.settings),
            "cpu": self.on_cpu,
            "seed": torch.jax.get_rng_state(),
        }
        return copy.deepcopy(torch.utils._pytree.tree_map(_on_cpu, values))


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def _raise(loss: torch.Tensor) -> None:
    raise KeyError("on purpose")


FAILURES = {
    "item": (lambda loss: loss.item(), DataDependentError),
    "print": (lambda loss: print("loss"), RuntimeError),
    "exception": (_raise, KeyError),
    "random": (lambda loss: random.random(), RuntimeError),
}


@pytest.mark.parametrize("fail, kind", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("stepped", [False, True])
def test_after_a_failure_everything_is_as_before(fail, kind, stepped):
    world = World(lambda loss: None)
    x = torch.ones(5, 3, device="jax") + torch.arange(5.0, device="jax").unsqueeze(1)
    if stepped:
        world.step(x)
    world.fail = fail
    before, given = world.snapshot(), x.cpu().clone()
    with pytest.raises(kind):
        torch_jax.jit(world.step)(x)
    torch.testing.assert_close(world.snapshot(), before, rtol=0, atol=0)
    assert torch.equal(x.cpu(), given)
    world.fail = lambda loss: None
    world.step(x)  # and it all still works


# --- fallback -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fallback_runs_the_call_eagerly_counts_and_tells():
    world, plain = World(lambda loss: loss.item()), World(lambda loss: loss.item())
    step = torch_jax.jit(world.step, fallback="eager")
    for index in range(3):
        torch.manual_seed(index)
        ours = step(torch.ones(5, 3, device="jax"))
        torch.manual_seed(index)
        theirs = plain.step(torch.ones(5, 3, device="jax"))
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach().cpu())
    assert world.count == 3
    assert step.explain().recorded == 3
    assert "3 calls were recorded" in str(step.explain())
    assert __file__ in str(step.explain())


def test_fallback_is_for_the_calls_that_need_it():
    @torch_jax.jit(fallback="eager")
    def function(x, look):
        return x * x.sum().item() if look else x * 2

    for _ in range(2):
        assert function(ONES, True).tolist() == [3, 3, 3]
        assert function(ONES, False).tolist() == [2, 2, 2]
    told = function.explain()
    assert (told.recorded, told.traces) == (3, 1)


def test_fallback_ends_where_the_reason_does():
    config = types.SimpleNamespace(look=True)
    function = torch_jax.jit(lambda x: x * (x.sum().item() if config.look else 2), fallback="eager")
    assert function(ONES).tolist() == [3, 3, 3]
    config.look = False
    assert function(ONES).tolist() == [2, 2, 2]


def test_fallback_lets_prints_and_random_numbers_through(capsys):
    @torch_jax.jit(fallback="eager")
    def function(x):
        print("hello")
        return x * random.random()

    assert function(ONES)[0].item() != function(ONES)[0].item()
    assert capsys.readouterr().out == "hello\nhello\n"


def test_options_are_checked():
    with pytest.raises(ValueError, match="fallback"):
        torch_jax.jit(lambda x: x, fallback="never")
    with pytest.raises(TypeError, match="scale"):
        torch_jax.jit(lambda x: x, traced=("scale",))
    with pytest.raises(TypeError, match="'y'"):
        torch_jax.jit(lambda x: x, dynamic={"y": {0: (4,)}})


# --- indices --------------------------------------------------------------------------------------


def test_an_index_out_of_range_raises_at_every_call():
    table = nn.Embedding(4, 2).to("jax")
    function = torch_jax.jit(lambda tokens: table(tokens) * 2)
    good, bad = torch.tensor([0, 3], device="jax"), torch.tensor([0, 4], device="jax")
    with pytest.raises(IndexError):
        function(bad)
    assert function(good).shape == (2, 2)
    with pytest.raises(IndexError):
        function(bad)
    assert function(good).shape == (2, 2)


@pytest.mark.parametrize("first", ["good", "bad"])
def test_an_index_out_of_range_leaves_the_parameters_alone(first):
    table = nn.Embedding(4, 2).to("jax")
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    step = torch_jax.jit(step_of(table, optimizer))
    if first == "good":
        step(torch.tensor([0, 3], device="jax"))
    before = table.weight.detach().cpu().clone()
    with pytest.raises(IndexError):
        step(torch.tensor([0, 9], device="jax"))
    assert torch.equal(table.weight.detach().cpu(), before)
