"""Proven functions are recorded now and then, and held against what was proven."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from torch_jax import config
from torch_jax.capture.state.guards import Guards
from torch_jax.dispatch import ladder
from torch_jax.recorded import limits

X = torch.ones(3, device="jax")


@pytest.fixture(autouse=True)
def as_users_have_it():
    with (
        config.temporarily("jit_recorded_calls", 3),
        config.temporarily("jit_check_every", 4),
        config.temporarily("jit_fallback", "record"),
    ):
        yield


@pytest.fixture
def blind(monkeypatch):
    """Guards that see nothing."""
    monkeypatch.setattr(Guards, "hold", lambda self: True)


def results(function, change, calls=20):
    """What a function gives by itself and compiled, something changed after the 7th call."""

    def run(function):
        found = []
        for call in range(calls):
            found.append(function(X).tolist())
            if call == 6:
                change()
        return found

    compiled = torch_jax.jit(function)
    return run(compiled), compiled.explain()


@pytest.mark.slow
def test_a_training_step_gives_no_false_alarm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).to("jax")
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    host = torch.zeros(2, dtype=torch.int64)

    @torch_jax.jit
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y.to("jax"))
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in range(24):
            step(torch.randn(2, 3, device="jax"), host + call % 2)
    told = step.explain()
    assert told.traces == 1 and told.recorded < 3 + 8
    assert not told.notes


def test_a_number_that_no_guard_saw(blind):
    scale = [2.0]
    with pytest.warns(UserWarning, match=r"was given 5\.0, where it had been given 2\.0"):
        found, told = results(lambda x: x * scale[0], lambda: scale.__setitem__(0, 5.0))
    assert found[-1] == [5.0] * 3
    assert told.traces == 1 and "Python runs at each call" in str(told)


def test_an_operator_that_no_guard_saw(blind):
    operator = [torch.sin]
    with pytest.warns(UserWarning, match=r"called aten::cos.* had called aten::sin"):
        found, _ = results(lambda x: operator[0](x), lambda: operator.__setitem__(0, torch.cos))
    assert found[-1] == torch.cos(X).tolist()


def test_a_tensor_that_no_guard_saw(blind, monkeypatch):
    held = {"w": torch.ones(3, device="jax")}
    others = torch.full((3,), 7.0, device="jax")
    with pytest.warns(UserWarning, match=r"aten::mul.* read another tensor than before"):
        found, _ = results(lambda x: x * held["w"], lambda: held.update(w=others))
    assert found[-1] == [7.0] * 3


def test_checks_are_rare_and_can_be_switched_off():
    function = torch_jax.jit(lambda x: x + 1)
    for _ in range(3 + 1 + 40):
        function(X)
    assert function.explain().recorded == 3 + 3 + 8  # at 2, 4, 8, and then at every fourth call
    config.set("jit_check_every", 0)
    function = torch_jax.jit(lambda x: x - 1)
    for _ in range(40):
        function(X)
    assert function.explain().recorded == 3


def test_python_is_not_skipped_where_operators_take_much_longer():
    weight = torch.ones(1024, 1024, device="jax")
    function = torch_jax.jit(lambda x: x @ weight @ weight)
    for _ in range(8):
        function(weight)
    assert function.explain().traces == 0
    assert "it takes little beside its operators" in str(function.explain())
    small = torch_jax.jit(lambda x: x @ x)
    for _ in range(8):
        small(torch.ones(4, 4, device="jax"))
    assert small.explain().traces == 1


def _slices_elsewhere():
    for first in range(4):
        with torch_jax.lazy():
            Y[first : first + 2] * 2.0


Y = torch.arange(8.0, device="jax")
FORGET = {
    "entries": ladder.forget_compiled,
    "paths": limits.forget,
    "where_views_begin": _slices_elsewhere,
}


@pytest.mark.parametrize("forget", FORGET.values(), ids=FORGET)
@pytest.mark.parametrize("after", [0, 2, 4, 6])
def test_what_is_forgotten_or_generalised_in_between_gives_no_alarm(forget, after):
    @torch_jax.jit
    def function(x):
        return (x[3:5] * 2.0).roll(1).sum(0) + torch.relu(x)[1]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in range(24):
            if call == after:
                forget()
            assert function(Y).item() == 15
    told = function.explain()
    assert told.traces in (1, 2) and not told.notes
    assert told.recorded < 12


def test_a_value_that_changes_between_the_recorded_calls_and_the_trace():
    held = {"dim": 0}
    by_argument = torch_jax.jit(lambda x, dim: x.sum(dim))
    by_place = torch_jax.jit(lambda x: x.sum(held["dim"]))
    rows = torch.arange(6.0, device="jax").reshape(2, 3)
    for call in range(60):
        held["dim"] = call // 3 % 2
        expected = rows.cpu().sum(held["dim"]).tolist()
        assert by_argument(rows, held["dim"]).tolist() == expected
        assert by_place(rows).tolist() == expected
    for function in (by_argument, by_place):
        assert function.explain().recorded < 60 and not function.explain().notes


def test_where_a_view_begins_that_no_guard_saw(blind):
    first = [0]
    with pytest.warns(UserWarning, match=r"aten::mul.* was given \[4\], .*been given \[0\]"):
        found, _ = results(
            lambda x: Y[first[0] : first[0] + 2] * 2.0, lambda: first.__setitem__(0, 4)
        )
    assert found[-1] == [8.0, 10.0]


def test_what_the_garbage_collector_calls_is_not_of_the_function():
    collected: list = []

    def callback(phase, info):
        collected.append(info)

    @torch_jax.jit
    def function(x):
        objects = [[] for _ in range(1000)]
        return x * len(objects)

    gc.callbacks.append(callback)
    try:
        for _ in range(8):
            assert function(X).tolist() == [1000] * 3
    finally:
        gc.callbacks.remove(callback)
    assert collected and gc.isenabled()
    assert function.explain().traces == 1


@pytest.mark.slow
def test_a_result_that_another_graph_of_the_call_is_given():
    table = torch.eye(4, device="jax")

    @torch_jax.jit
    def function(x):
        scale = x.sum() * 2
        rows = table[x.long()]  # indices that nothing proves are looked at, which ends a graph
        return rows * scale

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in range(24):
            x = torch.tensor([0.0, 1.0, call % 3], device="jax")
            assert function(x).sum().item() == 3 * 2 * (1 + call % 3)
    assert function.explain().traces == 1 and function.explain().recorded < 12


class Mixed(nn.Module):
    """Positions, sorted and gathered: integers that a graph makes, and looks at."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.linear = nn.Embedding(11, 4), nn.RMSNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(self.norm(self.table(x.long() % 11)))
        best, at = y.topk(2)
        return best.cumsum(1) + y.gather(1, at.flip(1)) + y.sort(1)[0][:, :2] * y.mean()


class Attends(nn.Module):
    """Attention by heads, and a norm whose gradients are sums over graphs."""

    def __init__(self):
        super().__init__()
        self.project, self.norm = nn.Linear(16, 48), nn.RMSNorm(16)

    def forward(self, x):
        query, key, value = self.project(self.norm(x)).unflatten(-1, (3, 2, 8)).unbind(2)
        heads = [one.transpose(1, 2) for one in (query, key, value)]
        return x + F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)


TRAINED = {
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)),
        (4, 3, 8, 8), torch.optim.SGD,
    ),
    "attention": (Attends, (2, 6, 16), torch.optim.AdamW),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 6, 16),
        torch.optim.RAdam,
    ),
    "recurrent": (lambda: nn.LSTM(4, 8, 2, dropout=0.1), (5, 2, 4), torch.optim.Adagrad),
    "indices": (Mixed, (3,), torch.optim.NAdam),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("make", "shape", "optimizer"), TRAINED.values(), ids=TRAINED)
@pytest.mark.parametrize("clips", [False, True])
def test_models_give_no_false_alarm(make, shape, optimizer, clips):
    torch.manual_seed(0)
    model = make().to("jax")
    optimizer = optimizer(model.parameters(), lr=1e-3)

    @torch_jax.jit
    def step(x):
        optimizer.zero_grad()
        result = model(x)
        loss = (result[0] if isinstance(result, tuple) else result).square().mean()
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(24):
            step(torch.rand(*shape, device="jax") * 10)
    told = step.explain()
    assert told.traces == 1 and told.recorded < 12 and not told.notes
