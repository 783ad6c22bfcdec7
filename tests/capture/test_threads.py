"""Compiled functions on several threads, with their regions of autocast, and ``torch.compile``."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import torch_jax
from tests.support.autocast import autocast
from tests.support.jitted import assert_run, both
from tests.support.values import ones, randn

PATIENCE = 30.0  # seconds
BF16, F16 = torch.bfloat16, torch.float16


@both
def test_calls_from_many_threads(pure):
    @torch_jax.jit(pure=pure)
    def double(x):
        return x * 2, torch.rand(3, device="jax")

    def work(index: int) -> list[tuple]:
        drawn = []
        for _ in range(5):
            result, random = double(ones(2 + index % 3) * index)
            assert result.tolist() == [2.0 * index] * (2 + index % 3)
            drawn.append(tuple(random.tolist()))
        return drawn

    with ThreadPoolExecutor(8) as threads:
        drawn = sum(threads.map(work, range(8)), [])
    assert len(set(drawn)) == 40
    assert_run(double, pure, kinds=double.explain().observed)


@both
def test_each_thread_has_its_own_region_of_autocast(pure):
    w, x = nn.Parameter(randn(4, 4)), randn(3, 4)
    compiled, barrier = torch_jax.jit(lambda x: x @ w, pure=pure), threading.Barrier(2)

    def work(dtype: torch.dtype) -> set[torch.dtype]:
        with autocast(dtype):
            return {compiled(x).dtype for _ in range(5) if barrier.wait() is not None}

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, (BF16, F16))) == [{BF16}, {F16}]
    assert compiled(x).dtype == torch.float32


@both
def test_other_threads_use_a_model_while_it_is_recorded(pure):
    model, x = nn.Sequential(*[nn.Linear(8, 8) for _ in range(12)]).to("jax"), randn(4, 8)
    expected, weight = model(x).detach().cpu(), model[3].weight.detach().cpu()
    stop = threading.Event()

    def use() -> int:
        rounds = 0
        while not stop.is_set():
            with torch.no_grad():
                result, copy, host = model(x), model[3].weight.clone(), model[5].bias.cpu()
                model[7].bias.mul_(1.0)
            torch.testing.assert_close(result.cpu(), expected)
            assert torch.equal(copy.cpu(), weight) and host.shape == (8,)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(3) as threads:
        others = [threads.submit(use) for _ in range(3)]
        try:
            for scale in range(10):
                function = torch_jax.jit(lambda x, s=scale: model(x).sum() * s, pure=pure)
                for _ in range(2):
                    function(x)
        finally:
            stop.set()
    rounds = [other.result() for other in others]
    assert any(rounds)


@pytest.mark.slow
@both
def test_threads_that_record_in_turn_leave_torch_compile_as_it_was(pure):
    began, may_end, compiled = threading.Event(), threading.Event(), []

    @torch_jax.jit(pure=pure)
    def outer(x: torch.Tensor) -> torch.Tensor:
        began.set()
        assert may_end.wait(PATIENCE)
        return x + 1

    def compile_once() -> None:
        torch._dynamo.reset()

        def backend(graph, _):
            return compiled.append(1) or graph

        torch.compile(lambda x: x * 2, backend=backend)(ones(2))

    @torch_jax.jit(pure=pure)
    def inner(x: torch.Tensor) -> torch.Tensor:
        may_end.set()
        first.result(PATIENCE)  # the other call begins before this one, and ends before it
        return x * 2

    compile_once()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(outer, ones(2))
        assert began.wait(PATIENCE)
        compile_once()  # while another thread records
        threads.submit(inner, ones(2)).result(PATIENCE)
    compile_once()
    assert len(compiled) == 3


@pytest.mark.parametrize("at", [0, 1, 3])  # in a first call, and in audits
@pytest.mark.parametrize("work", ["reads", "writes", "reads what it writes", "steps"])
def test_what_another_thread_does_meanwhile_is_none_of_a_call_s_work(work, at):
    weight, other = torch.zeros(3, device="jax"), torch.zeros(3, device="jax")
    count = torch_jax.jit(lambda x: weight.add_(x).sum(), pure=True, audit="error")
    works = {
        "reads": other.cpu,
        "writes": lambda: weight.add_(1),
        "reads what it writes": lambda: weight.add_(1).cpu(),
        "steps": lambda: count(ones(3)),
    }
    for _ in range(4):
        count(ones(3))
    weight.zero_()
    ran, meanwhile = [], [None] * at + [works[work]]

    @torch_jax.jit(pure=True, audit="error")
    def step(x):
        ran.append(x)
        read = (weight + x).sum()
        other.add_(x)
        if meanwhile and (found := meanwhile.pop(0)) is not None:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(found).result(PATIENCE)
        return read * 1

    results = [(len(meanwhile), step(ones(3)).item()) for _ in range(12)]
    written = 0.0 if work == "reads" else 1.0
    assert results == [(left, 3.0 + 3.0 * written * (left == 0)) for left, _ in results]
    assert weight.tolist() == [written] * 3 and other.tolist() == [12.0] * 3
    assert len(ran) < 12 and not step.explain().notes
