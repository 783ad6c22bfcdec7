"""Iterators, generators and coroutines: each call moves them on."""

from __future__ import annotations

import asyncio
import itertools

import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.programs.writing import CALLS, Bag, attempt, program, t


@program
def a_list_iterator_moves_on(compile):
    numbers = iter([float(k) for k in range(9)])
    f = compile(lambda x: x * next(numbers))
    for _ in range(7):
        yield f(t(1))


@program
def an_iterator_ends(compile):
    numbers = iter([1.0, 2.0, 3.0])
    f = compile(lambda x: x * next(numbers, -1.0))
    for _ in range(7):
        yield f(t(1))


@program
def an_iterator_that_ends_raises(compile):
    numbers = iter([1.0, 2.0, 3.0, 4.0])
    f = compile(lambda x: x * next(numbers))
    for _ in range(7):
        yield attempt(f, t(1))


@program
def an_iterator_is_moved_on_outside(compile):
    numbers = iter(range(30))
    f = compile(lambda x: x * next(numbers))
    for k in range(7):
        yield f(t(1))
        if k % 2:
            next(numbers)


@program
def an_iterator_in_an_attribute(compile):
    s = Bag(it=iter(range(9)))
    f = compile(lambda x: x * next(s.it))
    for k in range(8):
        yield f(t(1))
        if k == 4:
            s.it = iter([7, 8, 9, 10])


@program
def a_count_goes_up(compile):
    count = itertools.count(1)
    f = compile(lambda x: x * next(count))
    for _ in range(7):
        yield f(t(1))
    yield next(count)


@program
def a_cycle_turns(compile):
    turns = itertools.cycle([1.0, 2.0, 3.0])
    f = compile(lambda x: x * next(turns))
    for _ in range(8):
        yield f(t(1))


@program
def a_cycle_of_tensors(compile):
    turns = itertools.cycle([t(1), t(2)])
    f = compile(lambda x: x + next(turns))
    for _ in range(8):
        yield f(t(1))


@program
def a_zip_moves_on(compile):
    pairs = zip(range(9), itertools.count(3), strict=False)

    def step(x):
        a, b = next(pairs)
        return x * a + b

    f = compile(step)
    for _ in range(7):
        yield f(t(1))


@program
def a_map_moves_on(compile):
    s = Bag(k=1.0)
    numbers = map(lambda n: n * s.k, range(20))
    f = compile(lambda x: x * next(numbers))
    for _ in range(7):
        yield f(t(1))
        s.k += 1


@program
def a_chain_moves_on(compile):
    numbers = itertools.chain([1.0, 2.0], iter([3.0, 4.0, 5.0]), itertools.repeat(6.0))
    f = compile(lambda x: x * next(numbers))
    for _ in range(8):
        yield f(t(1))


@program
def a_filter_and_an_enumerate_move_on(compile):
    odd = filter(lambda n: n % 2, itertools.count())
    places = enumerate(odd, 5)

    def step(x):
        i, n = next(places)
        return x * n + i

    f = compile(step)
    for _ in range(7):
        yield f(t(1))


@program
def islice_takes_two(compile):
    numbers = iter(range(40))
    f = compile(lambda x: x * sum(itertools.islice(numbers, 2)))
    for _ in range(7):
        yield f(t(1))


@program
def accumulate_and_product(compile):
    sums = itertools.accumulate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    pairs = itertools.product("ab", range(4))

    def step(x):
        return x * next(sums), next(pairs)

    f = compile(step)
    for _ in range(7):
        yield f(t(1))


@program
def tee_keeps_two_places(compile):
    one, other = itertools.tee(range(20))
    f = compile(lambda x: x * next(one))
    for k in range(7):
        yield f(t(1))
        if k % 2:
            yield next(other)


@program
def a_reversed_list_iterator(compile):
    back = reversed([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    f = compile(lambda x: x * next(back) + back.__length_hint__())
    for _ in range(7):
        yield f(t(1))


@program
def an_iterator_of_a_dict(compile):
    d = {c: float(i) for i, c in enumerate("abcdefgh")}
    items = iter(d.items())

    def step(x):
        name, k = next(items)
        return x * k, name

    f = compile(step)
    for _ in range(7):
        yield f(t(1))


@program
def a_generator_moves_on(compile):
    def numbers():
        k = 1.0
        while True:
            yield k
            k *= 2

    g = numbers()
    f = compile(lambda x: x * next(g))
    for _ in range(7):
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
def a_generator_is_thrown_into(compile):
    def numbers():
        k = 0
        while True:
            try:
                yield k
                k += 1
            except ValueError:
                k = 100

    g = numbers()
    next(g)
    f = compile(lambda x, bad: x * (g.throw(ValueError()) if bad else next(g)))
    for k in range(7):
        yield f(t(1), k == 3)


@program
def a_generator_is_closed_inside(compile):
    closed = []

    def numbers():
        try:
            yield 2.0
        finally:
            closed.append(1)

    def step(x):
        g = numbers()
        y = x * next(g)
        g.close()
        return y * len(closed)

    f = compile(step)
    for _ in range(6):
        yield f(t(1)), len(closed)


@program
def a_generator_over_a_list_that_grows(compile):
    items = [1.0]
    g = (k * 2 for k in items)

    def step(x):
        items.append(items[-1] + 1)
        return x * next(g)

    f = compile(step)
    for _ in range(7):
        yield f(t(1)), items


@program
def a_generator_expression_inside(compile):
    s = Bag(items=[1.0, 2.0])
    f = compile(lambda x: sum(x * k for k in s.items if k > 1))
    for k in range(7):
        yield f(t(1))
        s.items.append(float(k))


@program
def yield_from_delegates(compile):
    def inner():
        got = yield 1.0
        return got * 10

    def outer():
        while True:
            result = yield from inner()
            yield result

    g = outer()
    next(g)
    f = compile(lambda x, k: x * g.send(k))
    for k in range(1, 7):
        yield f(t(1), float(k)), attempt(next, g)


@program
def a_class_that_iterates(compile):
    class Down:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            self.n -= 1
            if self.n < 0:
                raise StopIteration
            return self.n

    d = Down(6)
    f = compile(lambda x: x * next(d, 50))
    for _ in range(9):
        yield f(t(1)), d.n


@program
def a_sequence_by_getitem(compile):
    class Table:
        size = 2

        def __getitem__(self, i):
            if i >= self.size:
                raise IndexError
            return float(i + 1)

    table = Table()
    f = compile(lambda x: sum((x * k for k in table), x))
    for _ in range(7):
        yield f(t(1))
        table.size += 1


@program
def iter_with_a_sentinel(compile):
    items = [1.0, 2.0, 0.0, 3.0, 0.0, 0.0, 4.0, 0.0]
    f = compile(lambda x: x * sum(iter(lambda: items.pop(0), 0.0)))
    for _ in range(4):
        yield f(t(1)), items


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
def a_loader_outside(compile):
    w = t(0)
    loader = DataLoader(TensorDataset(torch.arange(21.0).view(7, 3)), batch_size=2)

    def step(batch):
        w.add_(batch.sum(0))
        return w * batch.shape[0]

    f = compile(step)
    for _ in range(2):
        for (batch,) in loader:
            yield f(batch.to("jax")), w


@program
def a_jitted_generator_function(compile):
    def steps(x):
        for k in range(3):
            yield x * k

    f = compile(lambda x: list(steps(x)))
    for k in range(6):
        yield f(t(k))


@program
def a_coroutine_is_driven_by_hand(compile):
    s = Bag(k=1.0)

    async def scaled(x):
        return x * s.k

    def step(x):
        coroutine = scaled(x)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value

    f = compile(step)
    for _ in range(7):
        yield f(t(1))
        s.k += 1


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


@program
def an_event_loop_inside(compile):
    s = Bag(n=0)

    async def work(x):
        await asyncio.sleep(0)
        s.n += 1
        return x * s.n

    f = compile(lambda x: asyncio.run(work(x)))
    for _ in range(6):
        yield f(t(1)), s.n
