"""Several threads write one memory: no write is lost while others compute."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import torch_jax
from tests.support import executors

THREADS, TIMES = 8, 40


@pytest.fixture(autouse=True)
def _threads_alternate() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], None]) -> None:
    """Run ``work(0)``, ``work(1)``, … in threads of their own that begin together."""
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(THREADS)))


def test_rows_that_are_filled():
    rows = torch.zeros(THREADS, device="jax")
    at_once(lambda i: rows[i].copy_(torch.tensor(float(i))))
    assert rows.tolist() == list(range(THREADS))


def test_rows_that_are_added_to():
    rows = torch.zeros(THREADS, 3, device="jax")

    def work(i: int) -> None:
        for _ in range(TIMES):
            rows[i].add_(1)

    at_once(work)
    assert (rows == TIMES).all()


def test_a_number_that_all_add_to_by_every_kind_of_write():
    total, other = torch.zeros(2, device="jax"), torch.zeros(2, device="jax")
    one = torch.ones(2, device="jax")

    def work(i: int) -> None:
        for _ in range(TIMES):
            if i % 2:
                total.add_(1)
            else:
                torch._foreach_add_([total, other], [one, one])

    at_once(work)
    assert total.tolist() == [THREADS * TIMES] * 2
    assert other.tolist() == [THREADS * TIMES / 2] * 2


@pytest.mark.slow
def test_random_operators_draw_once_however_often_they_are_tried():
    rows = torch.zeros(THREADS, 2, device="jax")
    torch.manual_seed(0)
    at_once(lambda i: rows[i].uniform_())
    drawn = sorted(map(tuple, rows.tolist()))
    torch.manual_seed(0)
    expected = [torch.zeros(2, device="jax").uniform_() for _ in range(THREADS)]
    assert drawn == sorted(tuple(row.tolist()) for row in expected)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["recorded", *executors.COMPILED])
def test_compiled_functions_that_take_the_memory_that_others_read_and_write(executor):
    rows = torch.zeros(THREADS, 64, device="jax")

    def add(rows):
        rows.add_(0.5)

    step = torch_jax.jit(add) if executor == "recorded" else executors.by(executor, add)
    step(rows)
    wrong = []

    def work(i: int) -> None:
        for n in range(TIMES):
            if i == 0:
                step(rows)
            elif i % 2:
                rows[i].add_(1)
            else:
                copy = rows.clone()
                if len(set((copy[0] * 2).tolist())) != 1:
                    wrong.append(n)

    at_once(work)
    assert not wrong
    odd = [float(i % 2) for i in range(THREADS)]
    assert rows[:, 0].tolist() == [(TIMES + 1) / 2 + TIMES * add for add in odd]
    assert (rows == rows[:, :1]).all()


@pytest.mark.slow
def test_compiled_functions_begin_and_end_while_others_write():
    rows = torch.zeros(THREADS, 3, device="jax")

    def work(i: int) -> None:
        for n in range(5 if i == 0 else TIMES):
            if i == 0:
                torch_jax.jit(lambda by=n: rows[0].add_(by * 0 + 1))()
            else:
                rows[i].add_(1)

    at_once(work)
    assert rows[:, 0].tolist() == [5] + [TIMES] * (THREADS - 1)
