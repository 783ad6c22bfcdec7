"""Threads: started inside, calling at once, with state of their own."""

from __future__ import annotations

import concurrent.futures
import queue
import threading

import torch

from tests.programs.writing import Bag, program, t

WAIT = 5  # seconds, after which a thread hangs


def _in_thread(function, *args):
    """What a function gives, called in a thread of its own."""
    found = queue.Queue()
    thread = threading.Thread(target=lambda: found.put(function(*args)), daemon=True)
    thread.start()
    out = found.get(timeout=WAIT)
    thread.join(WAIT)
    return out


@program
def first_calls_in_another_thread(compile):
    s = Bag(w=t(1))

    def step(x):
        s.w.add_(x)
        return s.w * 1

    f = compile(step)
    for k in range(6):
        yield _in_thread(f, t(k)), s


@program
def a_thread_inside_computes_with_tensors(compile):
    def step(x):
        return _in_thread(lambda: x * 2) + 1

    f = compile(step)
    for k in range(6):
        yield f(t(k))


@program
def a_pool_outside(compile):
    f = compile(lambda x, k: x * k)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for k in range(6):
            yield list(pool.map(f, [t(j) for j in range(4)], [float(k)] * 4))


@program
def grad_mode_of_each_thread(compile):
    w = t(1, grad=True)
    f = compile(lambda x: x * w)
    for k in range(6):
        with torch.no_grad():
            yield f(t(k)).requires_grad, _in_thread(f, t(k)).requires_grad


@program
def a_worker_with_two_queues(compile):
    work, done = queue.Queue(), queue.Queue()
    s = Bag(k=1.0)
    f = compile(lambda x: x * s.k)

    def loop():
        while (x := work.get()) is not None:
            done.put(f(x))

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    for k in range(7):
        work.put(t(k))
        yield done.get(timeout=WAIT)
        s.k += 1
    work.put(None)
    thread.join(WAIT)


@program
def many_calls_at_once_on_one_state(compile):
    lock, s = threading.Lock(), Bag(w=t(0))

    def step(x):
        with lock:
            s.w.add_(x)
        return x * 2

    f = compile(step)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for _ in range(4):
            yield list(pool.map(f, [t(1)] * 6)), s.w * 1


@program
def a_generator_shared_by_threads(compile):
    f = compile(lambda x: x + torch.rand(3, device="jax"))
    for k in range(6):
        yield _in_thread(f, t(k)) if k % 2 else f(t(k))
