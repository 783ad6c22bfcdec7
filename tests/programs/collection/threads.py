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
def calls_in_another_thread_and_threads_inside(compile):
    s = Bag(w=t(1))

    def step(x):
        s.w.add_(_in_thread(lambda: x * 2))
        return s.w * 1

    f = compile(step)
    for k in range(6):
        yield _in_thread(f, t(k)) if k % 3 else f(t(k)), s


@program
def grad_mode_of_each_thread(compile):
    w = t(1, grad=True)
    f = compile(lambda x: x * w)
    for k in range(6):
        with torch.no_grad():
            yield f(t(k)).requires_grad, _in_thread(f, t(k)).requires_grad


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
