"""Decisions of Python: by counters, by values of tensors, in generators, loaders and tasks."""

from __future__ import annotations

import asyncio

import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.programs.writing import CALLS, Bag, calls, program, t


@program
def every_third_call_and_the_tenth_are_others(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        if s.n == 10:
            s.extra = x * 5
        for i in range(s.n % 3):
            x = x * 100 + i
        return x + getattr(s, "extra", s.n)

    f = compile(step)
    for _ in range(14):
        yield f(t(1)), s


def _doubled_until_it_is_large(x):
    n = 0
    while x.sum() < 20:
        x, n = x * 2, n + 1
    return x, n


calls("an_item_decides", lambda x: (x * 2, "big") if x.sum().item() > 5 else (x, x[0].item()),
      lambda: ((t(k),) for k in (0, 5, 1, -3, 2, 0)))  # fmt: skip
calls("a_loop_until_a_value", _doubled_until_it_is_large,
      lambda: ((t(k),) for k in (1, 5, 30, 2, 1, 8)))  # fmt: skip
calls("sizes_that_hang_on_values", lambda x: (x[x > 1], torch.nonzero(x), x.tolist()),
      lambda: ((t(k),) for k in (0, 1, -3, 5, 0, 2)))  # fmt: skip


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
def a_loader_is_started_inside(compile):
    data = TensorDataset(torch.arange(6.0).view(2, 3))

    def step(x):
        for (batch,) in DataLoader(data, batch_size=1, shuffle=True):
            x = x * 2 + batch[0].to("jax")
        return x

    f = compile(step)
    for k in range(CALLS):
        yield f(t(k))


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
