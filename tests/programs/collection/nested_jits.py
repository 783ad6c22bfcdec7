"""Functions compiled within functions, several of one kind, methods; their life and death."""

from __future__ import annotations

import functools
import gc
import weakref

import torch

from tests.programs.writing import Bag, attempt, program, t


@program
def the_inner_one_counts_raises_and_is_replaced(compile):
    s = Bag(n=0)

    def inner(x):
        s.n += 1
        if s.n % 5 == 3:
            raise ValueError(s.n)
        return x * s.n

    def outer(x):
        try:
            return s.f(x) + s.f(x)
        except ValueError:
            return x - 1

    s.f, f = compile(inner), compile(outer)
    for k in range(10):
        yield f(t(k)), attempt(s.f, t(k)), s.n
        if k == 6:
            s.f = compile(lambda x, k=k: x * k)


@program
def one_writes_what_another_reads(compile):
    s = Bag(w=t(0), k=0.0)

    def write(x):
        s.w = s.w + x
        s.k += 1

    write, read = compile(write), compile(lambda x: x * s.w + s.k)
    for k in range(8):
        yield (write if k % 2 else read)(t(k)), s


@program
def a_recursive_one(compile):
    def power(x, n):
        return x if n == 0 else f(x * 2, n - 1)

    f = compile(power)
    for k in range(7):
        yield f(t(1), k % 4)


@program
def forward_and_backward_apart(compile):
    w = t(1, grad=True)
    s = Bag(scale=1.0)
    forward = compile(lambda x: (x * w).sum() * s.scale)

    def update():
        with torch.no_grad():
            w.sub_(w.grad * 0.1)
        w.grad = None

    update = compile(update)
    for k in range(8):
        forward(t(k)).backward()
        update()
        yield w
        s.scale += 1


@program
def a_partial_is_compiled(compile):
    f = compile(functools.partial(lambda k, x, b=0.0: x * k + b, 2.0, b=1.0))
    for k in range(8):
        yield f(t(k)) if k % 2 else f(t(k), b=float(k))


@program
def what_nobody_holds_dies(compile):
    """Arguments, results, and attributes that were replaced."""
    s, refs = Bag(w=t(1)), []

    def step(x):
        s.w = s.w + x
        return x * 2, x + 1

    f = compile(step)
    for k in range(6):
        x, before = t(k), s.w
        y, z = f(x)
        refs += [weakref.ref(one) for one in (x, before, y, z)]
        yield y, z, s
        del x, before, y, z
    gc.collect()
    yield [r() is None for r in refs]


@program
def eager_calls_between(compile):
    s = Bag(w=t(1))

    def step(x):
        s.w.add_(x)
        return s.w * 2

    f = compile(step)
    for k in range(9):
        yield (f if k % 3 else step)(t(k)), s
        s.w.mul_(0.5)
