"""The threads that record, and the moment when records run: lazily, or fused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_jax
from tests.support import processes
from tests.support.compare import assert_same
from tests.support.lazily import counted, is_pending
from torch_jax import config
from torch_jax.core.active import ACTIVE


@pytest.fixture
def lazy_mode() -> Iterator[None]:
    with config.temporarily("mode", "lazy"):
        yield


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """One other thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def something() -> torch.Tensor:
    return torch.ones(2).to("jax") + 1


def records() -> bool:
    return is_pending(something())


def test_the_mode_holds_for_this_thread_and_later_ones(lazy_mode, pool):
    assert records() and pool.submit(records).result()
    pool.submit(config.set, "mode", "eager").result()
    assert records() and not pool.submit(records).result()
    with ThreadPoolExecutor(1) as later:
        assert not later.submit(records).result()


def test_threads_that_run_eagerly_go_on(pool):
    assert not pool.submit(records).result()
    for mode in ("lazy", "fused"):
        with config.temporarily("mode", mode):
            x = something()
            assert is_pending(x) and not pool.submit(records).result()
        assert not is_pending(x) and x.tolist() == [2, 2]  # leaving the mode has run it
    assert not records() and ACTIVE.recorder is None


def test_a_block_outlasts_the_mode():
    with torch_jax.lazy():
        config.set("mode", "lazy")
        assert records()
    assert records()
    with torch_jax.lazy():
        config.set("mode", "eager")
    assert not records()


def test_blocks_within_blocks():
    with torch_jax.lazy():
        x = something()
        with torch_jax.lazy():
            y = x * 2
        assert is_pending(x) and is_pending(y)
    assert not is_pending(x) and y.tolist() == [4, 4]


@pytest.mark.parametrize("sync", [torch_jax.sync, torch_jax.mark_step, torch.jax.synchronize])
def test_sync_and_its_other_names(sync):
    with torch_jax.lazy(), counted() as did:
        x = something()
        assert is_pending(x)
        sync()
        assert not is_pending(x)
        sync()
    assert (did.graphs, did.early) == (1, 0)
    torch_jax.sync(wait=True)


def test_backward_passes_are_recorded_on_this_thread(lazy_mode):
    seen, w = [], torch.ones(2).to("jax").requires_grad_()
    y = w * 2
    y.register_hook(lambda gradient: seen.append(threading.current_thread()))
    y.sum().backward()
    assert is_pending(w.grad) and seen == [threading.current_thread()]
    assert w.grad.tolist() == [2, 2]


def test_tensors_go_from_thread_to_thread(lazy_mode, pool):
    x = something()

    def use() -> tuple[torch.Tensor, bool]:
        y = x * 2
        x.add_(1)
        return y, is_pending(y)

    y, was_pending = pool.submit(use).result()
    assert was_pending and y.tolist() == [4, 4] and x.tolist() == [3, 3]


def test_each_thread_records_its_own(lazy_mode):
    total, barrier = torch.zeros(4).to("jax"), threading.Barrier(4)

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


def test_a_result_that_no_tensor_holds_yet_is_not_lost(pool):
    """Another thread runs a recording at any moment of this one's."""
    stop, looked, shared = threading.Event(), threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            if shared and shared[-1].tolist():
                looked.set()

    watcher = pool.submit(look)
    try:
        with torch_jax.lazy():
            x = something()
            while len(shared) < 30 or not looked.is_set():
                x = (x + 1).relu() * 1
                shared.append(x)
            assert x.tolist() == [2 + len(shared)] * 2
    finally:
        stop.set()
    watcher.result()


@pytest.mark.parametrize("most", [3, 4, 5, 6])
def test_a_cut_keeps_the_result_of_the_operator_at_which_it_is(most, monkeypatch):
    monkeypatch.setattr("torch_jax.recorded.recorder._warned", ["said before"])
    with config.temporarily("lazy_operators", most), torch_jax.lazy():
        x = something()
        for n in range(8):
            x.add_(n)
            y = x * 2
    assert y.tolist() == [60, 60]


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


PROGRAM = """
import threading, torch
from torch_jax.core.node import Node

def pending():
    return type((torch.ones(2).to("jax") + 1).untyped_storage().array) is Node

print(pending())
threading.Thread(target=lambda: print(pending())).start()
"""
FORK = """
import os, torch, torch_jax
with torch_jax.lazy():
    x = torch.ones(2).to("jax") + 1
    if os.fork() == 0:
        for use in (x.tolist, lambda: x + 1):
            try:
                use()
            except RuntimeError as error:
                print("spawn" in str(error), flush=True)
        os._exit(0)
    os.wait()
    print(x.tolist())
"""


@pytest.mark.slow
def test_the_environment_variable():
    assert processes.output("-c", PROGRAM, TORCH_JAX_MODE="lazy").split() == ["True", "True"]


@pytest.mark.slow
def test_a_forked_child_refuses_what_the_parent_goes_on_with():
    assert processes.output("-c", FORK).split("\n") == ["True", "True", "[2.0, 2.0]"]


# --- fused mode: recordings cut themselves, and are compiled when they come again -----------------


def losses(device, count, look=()):
    """Those of a training loop, in which some are looked at."""
    torch.manual_seed(0)
    layers = (nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    model = nn.Sequential(*layers).to(device)
    optimizer, found = torch.optim.Adam(model.parameters(), lr=0.01), []
    for n in range(count):
        x, y = torch.randn(4, 6).to(device), torch.randint(3, (4,)).to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
        if n in look:
            loss.item()
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("look", [(), range(24), range(0, 24, 3)], ids=["never", "each", "third"])
def test_a_loop_is_cut_where_it_comes_around(look):
    with counted() as did, torch_jax.fused():
        found = losses("jax", 24, look)
    assert_same(found, losses("cpu", 24), scale=10)
    assert did.graphs >= 8  # a group is a few steps, whatever is looked at
    assert did.compiles <= 8
    with counted() as did, torch_jax.fused():
        losses("jax", 8, look)
    assert did.compiles <= 1


def test_a_group_that_comes_once_is_not_compiled():
    x = torch.rand(5)
    with counted() as did, torch_jax.fused():
        y = (x.to("jax") * 3 + 0.25).sin().cos()
        assert is_pending(y)
        y.sum().item()
    assert did.compiles == 0 and did.graphs == 1
    assert_same(y, (x * 3 + 0.25).sin().cos())


def test_a_group_is_never_longer_than_its_bound():
    def run(x):
        for n in range(600):
            x = x * 0.5 if n % 7 else x + 1
        return x

    x = torch.rand(5)
    with counted() as did, torch_jax.fused():
        found = run(x.to("jax"))
    assert did.graphs >= 3
    assert_same(found, run(x))
