"""Which threads record, and when what they recorded is run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import torch_jax
from tests.support import processes
from tests.support.lazily import counted, is_pending
from torch_jax.core.active import ACTIVE


@pytest.fixture
def lazy_mode() -> Iterator[None]:
    torch_jax.config.set("mode", "lazy")
    yield
    torch_jax.config.set("mode", "eager")


def on_a_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def something() -> torch.Tensor:
    return torch.ones(2).to("jax") + 1


def records() -> bool:
    return is_pending(something())


def test_the_mode_holds_for_this_thread_and_later_ones(lazy_mode):
    assert records() and on_a_thread(records)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(records).result()
        pool.submit(torch_jax.config.set, "mode", "eager").result()
        assert not pool.submit(records).result()
        assert records()
    assert not on_a_thread(records)


def test_threads_that_run_eagerly_go_on():
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(records).result()
        torch_jax.config.set("mode", "lazy")
        try:
            assert records() and not pool.submit(records).result()
        finally:
            torch_jax.config.set("mode", "eager")
        assert not records()


def test_leaving_the_mode_runs_what_is_recorded(lazy_mode):
    x = something()
    assert is_pending(x)
    torch_jax.config.set("mode", "eager")
    assert not is_pending(x) and x.tolist() == [2, 2]


def test_a_block_outlasts_the_mode():
    with torch_jax.lazy():
        torch_jax.config.set("mode", "lazy")
        assert records()
    assert records()
    with torch_jax.lazy():
        torch_jax.config.set("mode", "eager")
    assert not records()


def test_sync_and_its_other_name():
    for sync in (torch_jax.sync, torch_jax.mark_step, torch.jax.synchronize):
        with torch_jax.lazy(), counted() as did:
            x = something()
            assert is_pending(x)
            sync()
            assert not is_pending(x)
            sync()
        assert (did.graphs, did.early) == (1, 0)
    torch_jax.sync(wait=True)


def test_the_gradient_of_a_backward_pass_is_recorded(lazy_mode):
    seen = []
    w = torch.ones(2).to("jax").requires_grad_()
    y = w * 2
    y.register_hook(lambda gradient: seen.append(threading.current_thread()))
    y.sum().backward()
    assert is_pending(w.grad) and seen == [threading.current_thread()]
    torch_jax.config.set("mode", "eager")
    assert torch._C._is_multithreading_enabled()


def test_threads_of_autograd_do_not_record(lazy_mode):
    w = torch.ones(2).to("jax").requires_grad_()
    y = (w * 2).sum()
    with torch.autograd.set_multithreading_enabled(True):
        y.backward()
    assert w.grad.tolist() == [2, 2]


def test_tensors_go_from_thread_to_thread(lazy_mode):
    x = something()

    def use() -> tuple[torch.Tensor, bool]:
        y = x * 2
        x.add_(1)
        return y, is_pending(y)

    y, was_pending = on_a_thread(use)
    assert was_pending and y.tolist() == [4, 4] and x.tolist() == [3, 3]


def test_each_thread_records_its_own(lazy_mode):
    total = torch.zeros(4).to("jax")
    barrier = threading.Barrier(4)

    def work(at: int) -> list[float]:
        barrier.wait()
        x = torch.full((3,), float(at)).to("jax")
        for _ in range(5):
            for _ in range(4):
                x = x * 2 - at
            total[at].add_(x[0])
            torch_jax.sync()
        return x.tolist()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [[float(at)] * 3 for at in range(4)]
    assert total.tolist() == [5.0 * at for at in range(4)]


def test_a_result_that_no_tensor_holds_yet_is_not_lost():
    """Another thread runs a recording at any moment of this one's."""
    stop, seen = threading.Event(), []
    shared: list[torch.Tensor] = []

    def look() -> None:
        while not stop.is_set():
            if shared:
                seen.append(shared[-1].tolist())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        with torch_jax.lazy():
            x = something()
            for _ in range(30):
                x = (x + 1).relu() * 1
                shared.append(x)
            assert x.tolist() == [32, 32]
    finally:
        stop.set()
        watcher.join()
    assert seen


@pytest.mark.slow
def test_a_cut_keeps_the_result_of_the_operator_at_which_it_is(monkeypatch):
    monkeypatch.setattr("torch_jax.recorded.lazy._warned", ["said before"])
    for most in (3, 4, 5, 6):
        before = torch_jax.config.get("lazy_operators")
        torch_jax.config.set("lazy_operators", most)
        try:
            with torch_jax.lazy():
                x = something()
                for n in range(8):
                    x.add_(n)
                    y = x * 2
            assert y.tolist() == [60, 60]
        finally:
            torch_jax.config.set("lazy_operators", before)


def test_early_syncs_are_counted_with_their_lines():
    with torch_jax.lazy(), counted() as did:
        for _ in range(3):
            x = something()
            if x[0] > 1:
                x.add_(1)
            x.tolist()
            x.tolist()
    assert did.early == 6 and len(did.lines) == 2
    assert all(line.startswith(__file__) for line in did.lines)


def test_no_recorder_in_eager_mode():
    something()
    assert ACTIVE.recorder is None


PROGRAM = """
import threading, torch
from torch_jax.core.node import Node

def pending():
    return type((torch.ones(2).to("jax") + 1).untyped_storage().array) is Node

print(pending())
threading.Thread(target=lambda: print(pending())).start()
"""


@pytest.mark.slow
def test_the_environment_variable():
    assert processes.output("-c", PROGRAM, TORCH_JAX_MODE="lazy").split() == ["True", "True"]


FORK = """
import os, sys, torch, torch_jax
with torch_jax.lazy():
    x = torch.ones(2).to("jax") + 1
    if os.fork() == 0:
        try:
            x.tolist()
        except RuntimeError as error:
            print("spawn" in str(error), flush=True)
        try:
            x + 1
        except RuntimeError as error:
            print("spawn" in str(error), flush=True)
        os._exit(0)
    os.wait()
    print(x.tolist())
"""


@pytest.mark.slow
def test_a_forked_child_refuses_what_the_parent_goes_on_with():
    assert processes.output("-c", FORK).split("\n") == ["True", "True", "[2.0, 2.0]"]
