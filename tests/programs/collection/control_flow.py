"""Decisions of Python: counters, loops, values of tensors, iterators held across calls."""

from __future__ import annotations

import asyncio
import itertools

import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.programs.writing import CALLS, Bag, m, program, t


@program
def a_loop_of_a_changing_length(compile):
    s = Bag(n=1)

    def step(x):
        for i in range(s.n):
            x = x + i
        else:
            x = x * 2
        return x

    f = compile(step)
    for k in range(8):
        yield f(t(1))
        s.n = k % 4


@program
def every_third_call_is_another(compile):
    s = Bag(step=0)

    def step(x):
        s.step += 1
        return x * 100 if s.step % 3 == 0 else x + s.step

    f = compile(step)
    for _ in range(14):
        yield f(t(1)), s.step


@program
def only_the_tenth_call_is_another(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        if s.n == 10:
            s.extra = x * 5
        return x + getattr(s, "extra", 0)

    f = compile(step)
    for _ in range(14):
        yield f(t(1)), s


@program
def patience_runs_out(compile):
    s = Bag(best=1e9, bad=0, lr=1.0)

    def step(x, loss):
        if loss < s.best:
            s.best, s.bad = loss, 0
        else:
            s.bad += 1
        if s.bad >= 2:
            s.lr, s.bad = s.lr / 2, 0
        return x * s.lr

    f = compile(step)
    for loss in (5.0, 4.0, 4.5, 4.6, 3.0, 3.1, 3.2, 3.3, 2.0):
        yield f(t(1), loss), s


@program
def an_item_decides(compile):
    f = compile(lambda x: (x * 2, "big") if x.sum().item() > 5 else (x - 1, "small"))
    for k in (0, 5, 1, -3, 2, 0):
        yield f(t(k))


@program
def an_item_is_kept(compile):
    s = Bag(losses=[])

    def step(x):
        s.losses.append(x.sum().item())
        return x * s.losses[-1]

    f = compile(step)
    for k in range(7):
        yield f(t(k)), s.losses


@program
def a_loop_until_a_value(compile):
    def step(x):
        n = 0
        while x.sum() < 20:
            x, n = x * 2, n + 1
        return x, n

    f = compile(step)
    for k in (1, 5, 30, 2, 1, 8):
        yield f(t(k))


@program
def sizes_that_hang_on_values(compile):
    f = compile(lambda x: (x[x > 1], torch.nonzero(x), x.tolist()))
    for k in (0, 1, -3, 5, 0, 2):
        yield f(t(k))


@program
def a_cpu_counter_is_moved_on(compile):
    c = torch.zeros((), dtype=torch.int64)

    def step(x):
        c.add_(1)
        return x * c.item()

    f = compile(step)
    for _ in range(7):
        yield f(t(1)), c.item()


@program
def shapes_decide(compile):
    f = compile(lambda x: x.sum(0) if x.dim() == 2 and x.shape[0] > 1 else x * 2)
    for x in (t(1), m(), t(1), m()[:1], m(), t(1)):
        yield f(x)


@program
def a_cycle_of_tensors(compile):
    turns = itertools.cycle([t(1), t(2)])
    f = compile(lambda x: x + next(turns))
    for _ in range(8):
        yield f(t(1))


@program
def a_generator_is_sent_to(compile):
    def running_sum():
        total = 0.0
        while True:
            total += yield total

    g = running_sum()
    next(g)
    f = compile(lambda x, k: x * g.send(k))
    for k in range(7):
        yield f(t(1), float(k))


@program
def a_generator_keeps_tensors(compile):
    def running(decay):
        mean = t(0)
        while True:
            x = yield mean
            mean = mean * decay + x

    g = running(0.5)
    next(g)
    f = compile(lambda x: g.send(x))
    for k in range(7):
        yield f(t(k))


@program
def a_loader_is_read_inside(compile):
    data = TensorDataset(torch.arange(18.0).view(6, 3))
    batches = iter(DataLoader(data, batch_size=1))
    f = compile(lambda x: x + next(batches)[0][0].to("jax"))
    for _ in range(6):
        yield f(t(1))


@program
def a_loader_is_started_inside(compile):
    data = TensorDataset(torch.arange(6.0).view(2, 3))
    s = Bag(n=0)

    def step(x):
        for (batch,) in DataLoader(data, batch_size=1, shuffle=True):
            x = x * 2 + batch[0].to("jax")
        s.n += 1
        return x

    f = compile(step)
    for _ in range(CALLS):
        yield f(t(1)), s.n


@program
def calls_from_tasks(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        return x * s.n

    f = compile(step)

    async def work(k):
        await asyncio.sleep(0)
        return f(t(k))

    async def all_of_them():
        return await asyncio.gather(*[work(k) for k in range(7)])

    yield asyncio.run(all_of_them()), s.n
    yield f(t(1)), s.n
