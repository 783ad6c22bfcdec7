"""Threads and tasks: started inside, calling at once, with state of their own."""

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
def calls_from_another_thread(compile):
    s = Bag(k=1.0)
    f = compile(lambda x: x * s.k)
    for k in range(8):
        yield _in_thread(f, t(1)) if k % 2 else f(t(1))
        s.k += 1


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
def a_thread_is_started_inside(compile):
    s = Bag(k=1.0)

    def step(x):
        found = []
        thread = threading.Thread(target=lambda: found.append(s.k * 2), daemon=True)
        thread.start()
        thread.join()
        return x * found[0]

    f = compile(step)
    for _ in range(6):
        yield f(t(1))
        s.k += 1


@program
def a_thread_inside_computes_with_tensors(compile):
    def step(x):
        return _in_thread(lambda: x * 2) + 1

    f = compile(step)
    for k in range(6):
        yield f(t(k))


@program
def a_pool_inside(compile):
    s = Bag(k=1.0)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        f = compile(lambda x: x * pool.submit(lambda: s.k).result(WAIT))
        for _ in range(6):
            yield f(t(1))
            s.k += 1


@program
def a_pool_outside(compile):
    f = compile(lambda x, k: x * k)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for k in range(6):
            yield list(pool.map(f, [t(j) for j in range(4)], [float(k)] * 4))


@program
def values_of_each_thread(compile):
    local = threading.local()
    local.k = 1.0

    f = compile(lambda x: x * getattr(local, "k", 0.5))
    for k in range(8):
        yield f(t(1)), _in_thread(f, t(1))
        local.k += 1


@program
def grad_mode_of_each_thread(compile):
    w = t(1, grad=True)
    f = compile(lambda x: x * w)
    for k in range(6):
        with torch.no_grad():
            yield f(t(k)).requires_grad, _in_thread(f, t(k)).requires_grad


@program
def the_name_of_the_thread(compile):
    f = compile(lambda x: x + 1 if threading.current_thread() is threading.main_thread() else x * 2)
    for k in range(6):
        yield f(t(k)), _in_thread(f, t(k))


@program
def a_thread_writes_between(compile):
    s = Bag(w=t(1), k=0.0)

    def change():
        s.w = s.w * 2
        s.k += 1

    f = compile(lambda x: x * s.w + s.k)
    for k in range(7):
        yield f(t(k))
        _in_thread(change)


@program
def two_threads_take_turns(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        return x * s.n

    f = compile(step)
    for k in range(8):
        yield (f(t(1)), _in_thread(f, t(1))), s.n


@program
def a_lock_around_the_state(compile):
    lock, s = threading.Lock(), Bag(n=0)

    def step(x):
        with lock:
            s.n += 1
            return x * s.n

    f = compile(step)
    for _ in range(7):
        yield f(t(1)), s.n, lock.locked()


@program
def a_lock_is_taken_and_kept(compile):
    lock = threading.Lock()
    f = compile(lambda x: x * 2 if lock.acquire(blocking=False) else x + 1)
    for k in range(7):
        yield f(t(1)), lock.locked()
        if k % 3 == 2:
            lock.release()


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
def counts_of_active_threads(compile):
    before = threading.active_count()
    stop = threading.Event()
    f = compile(lambda x: x * (1 + threading.active_count() - before))
    for k in range(6):
        yield f(t(1))
        if k == 2:
            thread = threading.Thread(target=stop.wait, daemon=True)
            thread.start()
    stop.set()
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


@program
def a_timer_sets_a_flag(compile):
    s = Bag(on=False)
    f = compile(lambda x: x * 2 if s.on else x + 1)
    for k in range(6):
        yield f(t(k))
        if k == 2:
            timer = threading.Timer(0.01, lambda: setattr(s, "on", True))
            timer.start()
            timer.join(WAIT)


@program
def a_future_is_awaited_inside(compile):
    s = Bag(future=None)
    f = compile(lambda x: x * s.future.result(WAIT))
    for k in range(6):
        s.future = concurrent.futures.Future()
        s.future.set_result(float(k))
        yield f(t(1))


@program
def data_parallel_lists(compile):
    nets = [torch.nn.Linear(3, 3).to("jax") for _ in range(2)]

    def step(xs):
        return [n(x).detach() for n, x in zip(nets, xs, strict=True)]

    f = compile(step)
    for k in range(6):
        yield f([t(k), t(k + 1)])
        nets.reverse()
