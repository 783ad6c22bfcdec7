"""``torch_jax.jit`` as it is by default: Python runs at each call, so that nothing can be stale."""

from __future__ import annotations

import collections
import itertools
import random
import types
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.compare import assert_same
from tests.support.steps import mlp, step_of
from tests.support.values import ones


def trained(device, wrap, make, calls=6):
    """Return what a step of ``make`` returns at each call, and the parameters at the end."""
    torch.manual_seed(0)
    model = mlp("cpu").to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)
    step, given = wrap(make(model, optimizer)), []
    for call in range(calls):
        given.append(step(torch.full((3, 4), 1.0 + call).to(device)))
    tensors = [t.detach().cpu() for t in torch.utils._pytree.tree_leaves(given) if _is_tensor(t)]
    others = [t for t in torch.utils._pytree.tree_leaves(given) if not _is_tensor(t)]
    return tensors, others, [p.detach().cpu() for p in model.parameters()]


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _casts_inside(model, optimizer):
    def step(x):
        model.double()
        y = model(x.double()).sum()
        model.float()
        return y, model(x).sum()

    return step


def _schedules(model, optimizer):
    plain = step_of(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def step(x):
        loss = plain(x)
        schedule.step()
        return loss, schedule.get_last_lr()

    return step


def _counts(model, optimizer):
    count = 0

    def step(x):
        nonlocal count
        count += 1
        (model(x).square().mean() / 2).backward()
        if count % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return count

    return step


def _looks(model, optimizer):
    plain = step_of(model, optimizer)

    def step(x):
        loss = plain(x)
        if loss.item() > 0.05:
            for group in optimizer.param_groups:
                group["lr"] *= 1.5
        return loss * 2, bool(loss > 0.1)

    return step


def _memory(model, optimizer):
    plain, log = step_of(model, optimizer), []

    def step(x):
        loss = plain(x)
        log.append(torch.jax.memory_allocated() if x.device.type == "jax" else 1)
        return loss, len(log), log[-1] > 0

    return step


def _changes_parameters(model, optimizer):
    plain = step_of(model, optimizer)

    def step(x):
        if plain.calls == 3:
            model[0].weight = nn.Parameter(model[0].weight.detach() * 2)
            optimizer.add_param_group({"params": [model[0].weight]})
            model[2].requires_grad_(False)
        plain.calls += 1
        return plain(x)

    plain.calls = 0
    return step


STEPS = [_casts_inside, _schedules, _counts, _looks, _memory, _changes_parameters]


@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_steps_are_those_of_the_cpu(make):
    ours = trained("jax", torch_jax.jit, make)
    theirs = trained("cpu", lambda step: step, make)
    assert ours[1] == pytest.approx(theirs[1])
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[2], theirs[2], rtol=1e-4, atol=1e-5)


@torch.library.custom_op("torch_jax_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """A kernel in Python, which looks at values."""
    return x * (2 if x.sum().item() > 0 else 3)


@pytest.mark.parametrize("pure", [False, True])
def test_a_custom_operator_with_a_python_kernel(pure):
    function = torch_jax.jit(lambda x: doubled(x + 1) - 1, pure=pure)
    with pytest.warns(UserWarning, match="is looked at") if pure else nullcontext():
        function(ones())
    for value in (1.0, -3.0, 2.0):
        x = torch.full((3,), value)
        assert_same(function(x.to("jax")), doubled(x + 1) - 1)


def test_what_python_keeps_and_reads_is_as_the_plain_function_has_it():
    """Attributes, lists, dicts, deques, counters, random numbers, caches by size."""

    def make(device):
        kept = types.SimpleNamespace(mean=None, all=[], recent=collections.deque(maxlen=2))
        cache, counter, generator = {}, itertools.count(1), random.Random(0)

        def function(x):
            kept.mean = x if kept.mean is None else kept.mean * 0.5 + x * 0.5
            kept.all.append(x.sum())
            kept.recent.append(x * next(counter))
            n = len(x)
            if n not in cache:
                cache[n] = torch.arange(float(n), device=device)
            cache["last"] = (kept.mean + sum(kept.all)) * generator.random() + cache[n]
            return cache["last"], kept.recent, len(kept.all)

        return function

    ours, theirs = torch_jax.jit(make("jax")), make("cpu")
    for value in range(6):
        x = torch.full((3,), float(value))
        result, expected = ours(x.to("jax")), theirs(x)
        assert_same(list(result[1]), list(expected[1]))
        assert_same(result[::2], expected[::2])


class Counting(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), device=device))
        self.register_buffer("mean", torch.zeros(3, device=device))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        self.mean = self.mean * 0.5 + x * 0.5
        return x * self.seen * self.calls


def test_buffers_that_are_replaced_and_attributes_that_count():
    ours, theirs = torch_jax.jit(Counting("jax")), Counting("cpu")
    for value in range(5):
        x = torch.full((3,), float(value))
        assert_same(ours(x.to("jax")), theirs(x))
        assert_same(ours.mean, theirs.mean)
    assert ours.calls == 5 and ours.seen.item() == 5


@pytest.mark.parametrize("pure", [False, True])
def test_an_exception_in_the_middle_leaves_what_was_done_until_then(pure):
    def make(device, wrap):
        weight = torch.ones(3, device=device)
        limit = [2]

        @wrap
        def function(x, call):
            weight.add_(x)
            if call == limit[0]:
                raise ValueError(f"call {call}")
            weight.mul_(2)
            return weight.sum()

        return function, weight

    ours, on_device = make("jax", torch_jax.jit(pure=pure))
    theirs, on_cpu = make("cpu", lambda f: f)
    for call in (0, 2, 0, 2, 0, 0):
        for function, x in ((ours, ones()), (theirs, torch.ones(3))):
            if call == 2:
                with pytest.raises(ValueError, match="call 2"):
                    function(x, call)
            else:
                function(x, call)
        assert_same(on_device, on_cpu)


def test_an_error_that_the_function_handles_itself():
    def function(x):
        try:
            return x @ torch.ones(5, 5, device=x.device)
        except RuntimeError:
            return x * 3

    for pure in (False, True):
        jitted = torch_jax.jit(function, pure=pure)
        for _ in range(3):
            assert jitted(ones()).tolist() == [3, 3, 3]


def test_an_index_out_of_range_raises_and_later_calls_go_on():
    table = nn.Embedding(4, 2).to("jax")
    function = torch_jax.jit(lambda tokens: table(tokens) * 2)
    for last in (4, 3, 4, 3):
        tokens = torch.tensor([0, last], device="jax")
        if last == 4:
            with pytest.raises(IndexError):
                function(tokens).tolist()
        else:
            assert_same(function(tokens), table.weight[[0, 3]].detach().cpu() * 2, strides=False)


def test_equal_calls_give_the_hint_that_pure_would_pay():
    model = mlp()
    step = torch_jax.jit(step_of(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in range(53):
            assert ("jit(pure=True) would skip it" in str(step.explain())) == (call > 50)
            step(ones(3, 4))
    assert step.explain().recorded == 53
