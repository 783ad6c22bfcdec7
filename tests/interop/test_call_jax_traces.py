"""Traces of JAX functions: one for the values they read, and another when these change."""

from __future__ import annotations

import functools
import gc
import re
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.func import jvp

import torch_jax
from tests.support import executors
from tests.support.compare import assert_same
from torch_jax import call_jax
from torch_jax.interop import jax_calls

SCALE = 2.0


def _values(count):
    return torch.linspace(-1, 1, count)


@pytest.fixture
def traces(monkeypatch):
    """Which functions are traced."""
    seen: list[Any] = []
    original = jax_calls._trace

    def trace(function, *args):
        seen.append(function)
        return original(function, *args)

    monkeypatch.setattr(jax_calls, "_trace", trace)
    return seen


def test_a_function_made_anew_is_the_same_function(traces):
    x = _values(3).to("jax")

    def scaled(by):
        return call_jax(lambda x: x * by, x)

    assert_same([scaled(by) for by in (2, 3, 2, 3)], [_values(3) * by for by in (2, 3, 2, 3)])
    assert len(traces) == 2
    call_jax(lambda x: x * 1, x[:2])
    assert len(traces) == 3


def test_nothing_is_stale(traces, monkeypatch):
    held = {"by": [2.0, np.ones(1, np.float32)], 3: {1}}

    class Scaled:
        more = 1.0

        def __init__(self):
            self.by = 2.0

        def __call__(self, x):
            return x * self.by * _helper(self.more)

    scaled = Scaled()

    def of_globals(x):
        return x * SCALE

    def of_containers(x):
        return x * held["by"][0] * held["by"][1] * len(held[3])

    x = torch.ones(1, device="jax")
    functions = of_globals, of_containers, scaled, scaled.__call__, functools.partial(scaled, x)

    def all_of_them():
        calls = [(f, x) for f in functions[:4]] + [(functions[4],)]
        return [call_jax(f, *args).item() for f, *args in calls]

    assert all_of_them() == [2, 2, 2, 2, 2]
    count = len(traces)
    assert all_of_them() == [2, 2, 2, 2, 2] and len(traces) == count
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    held["by"][0] = 5.0
    scaled.by = 7.0
    assert all_of_them() == [3, 5, 7, 7, 7]
    held["by"][1][0] = 2
    monkeypatch.setattr(Scaled, "more", 2.0)
    assert all_of_them() == [3, 10, 14, 14, 14]
    held[3].add(2)
    monkeypatch.setitem(globals(), "_helper", lambda more: more * 10)
    assert all_of_them() == [3, 20, 140, 140, 140]
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert all_of_them()[0] == 2


def _helper(more):
    return more


def test_static_arguments_count_by_what_they_hold(traces):
    class Options:
        by = 2.0

    options, x = Options(), torch.ones(1, device="jax")
    values = [1.0, -0.0, 0.0, {1, 2}, {1, 2}, options]

    def function(x, value):
        by = getattr(value, "by", len(value) if isinstance(value, set) else value)
        return jnp.sign(x) / by

    found = [call_jax(function, x, value).item() for value in values]
    assert found == [1, -np.inf, np.inf, 0.5, 0.5, 0.5] and len(traces) == 5
    options.by = 4.0
    assert call_jax(function, x, options).item() == 0.25


def test_static_arguments_of_classes_made_of_others():
    class Text(str):
        pass

    class Pair(tuple):
        pass

    x = torch.ones(1, device="jax")
    values = Text("a"), Text("ab"), Pair((1, 2, 3)), Pair((1, 2, 3, 4))
    assert [call_jax(lambda x, v: x * len(v), x, v).item() for v in values] == [1, 2, 3, 4]
    patterns = re.compile("a"), re.compile("ab"), re.compile("a")
    found = [call_jax(lambda x, p: x * len(p.pattern), x, p).item() for p in patterns]
    assert found == [1, 2, 1]


def test_what_cannot_be_known_is_traced_at_each_call(traces):
    numbers = iter([2.0, 2.0, 3.0])
    x = torch.ones(1, device="jax")
    function = lambda x: x * next(numbers)  # noqa: E731
    assert [call_jax(function, x).item() for _ in range(3)] == [2, 2, 3]
    assert len(traces) == 3


def test_what_a_backward_pass_uses_is_what_the_forward_pass_read():
    by = 2.0

    def function(x):
        return x * by

    x = torch.ones(1, device="jax", requires_grad=True)
    y = call_jax(function, x)
    by = 3.0
    y.backward()
    assert x.grad.item() == 2


@pytest.mark.parametrize("executor", [executors.param(name) for name in executors.COMPILED])
def test_nothing_is_stale_in_programs(executor, monkeypatch):
    def function(x):
        return x * SCALE

    def called(x):
        return call_jax(function, x) + 1

    # a pure one promises that what it reads does not change
    run = torch_jax.jit(called) if executor == "jit" else executors.by(executor, called)
    x = torch.ones(1, device="jax")
    assert [run(x).item() for _ in range(3)] == [3, 3, 3]
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    assert [run(x).item() for _ in range(2)] == [5, 5]
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert run(x).item() == 3


def test_nothing_is_stale_under_jit():
    held, numbers = {"by": 2.0}, iter([1.0, 2.0, 3.0])
    compiled = torch_jax.jit(lambda x: call_jax(lambda x: x * held["by"], x) + 1)
    x = torch.ones(1, device="jax")
    assert [compiled(x).item() for _ in range(2)] == [3, 3]
    held["by"] = 5.0
    assert compiled(x).item() == 6
    counting = torch_jax.jit(lambda x: call_jax(lambda x: x * next(numbers), x))
    assert [counting(x).item() for _ in range(3)] == [1, 2, 3]


def test_an_audit_finds_a_function_that_changes():
    numbers = iter([1.0, 2.0, 3.0, 4.0])
    function = torch_jax.jit(lambda x: call_jax(lambda x: x * next(numbers), x), pure=True)
    x = torch.ones(1, device="jax")
    assert [function(x).item() for _ in range(2)] == [1, 2]  # which takes the place of the first
    with pytest.warns(UserWarning, match="call_jax at .* computes something else than before"):
        assert function(x).item() == 3
    assert function(x).item() == 4


@pytest.mark.slow
def test_functions_and_programs_are_let_go():
    def make():
        function = eval("lambda x: x * 2")
        x = torch.ones(3, device="jax", requires_grad=True)
        call_jax(function, x).sum().backward()
        return weakref.ref(function), weakref.ref(x)

    found = make()
    gc.collect()
    assert [one() for one in found] == [None, None]

    def call(array):
        call_jax(lambda x: x * array, torch.ones(3, device="jax"))
        return weakref.ref(array)

    arrays = [call(jnp.ones(3)) for _ in range(5)]
    gc.collect()
    assert sum(array() is not None for array in arrays) <= 2


@pytest.mark.slow
def test_a_graph_keeps_its_programs():
    torch._dynamo.reset()
    function = eval("lambda x: x * 2")
    compiled = torch.compile(lambda x: call_jax(function, x), backend="jax", fullgraph=True)
    x = torch.ones(2, device="jax", requires_grad=True)
    compiled(x)
    jax_calls._by_code.clear()
    gc.collect()
    compiled(x).sum().backward()
    assert x.grad.tolist() == [2, 2]


@pytest.mark.slow
def test_a_transform_breaks_a_graph():
    torch._dynamo.reset()
    run = torch.compile(lambda x: jvp(lambda x: call_jax(jnp.sin, x), (x,), (x,)), backend="jax")
    assert_same(run(_values(3).to("jax")), jvp(torch.sin, (_values(3),), (_values(3),)))


@pytest.mark.slow
def test_arrays_break_a_graph_and_are_inputs():
    torch._dynamo.reset()

    def function(x, array):
        return call_jax(lambda x, array: x + array, x * 1, array) * 2

    run, x = torch.compile(function, backend="jax"), torch.ones(2, device="jax")
    for array in (jnp.ones(2), jnp.zeros(2), np.ones(2, np.float32), np.zeros(2, np.float32)):
        assert_same(run(x, array), 2 + 2 * torch.tensor(np.asarray(array)))
    steps = iter(range(3))
    run = torch.compile(lambda x: call_jax(lambda x: x + next(steps), x * 1), backend="jax")
    assert [run(x)[0].item() for _ in range(2)] == [1, 2]


@pytest.mark.slow
def test_arrays_and_keys_among_arguments_and_closures(traces):
    x, key = _values(3), jax.random.key(3)
    held = jnp.arange(3.0)

    def noisy(key, x, more, of_numpy):
        return x + jax.random.normal(key, x.shape) + held + more + of_numpy

    numpy = np.ones(3)
    expected = torch.tensor(np.asarray(noisy(key, jnp.asarray(x.numpy()), held, numpy)))
    for given in (key, jax.random.split(key)[0], jax.random.PRNGKey(3)):
        found = call_jax(noisy, given, x.to("jax"), held, numpy)
        if given is key:
            assert_same(found, expected)
    assert len(traces) == 2
    numpy += 1
    assert_same(call_jax(noisy, key, x.to("jax"), held, numpy), expected + 1)
    assert len(traces) == 2
