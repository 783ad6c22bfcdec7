"""Functions compiled within functions, several of one kind, methods; their life and death."""

from __future__ import annotations

import gc
import weakref

import torch

from tests.programs.writing import Bag, attempt, program, t


@program
def the_inner_one_counts(compile):
    s = Bag(n=0)

    def inner(x):
        s.n += 1
        return x * s.n

    inner = compile(inner)
    outer = compile(lambda x: inner(x) + inner(x))
    for k in range(8):
        yield outer(t(1)) if k % 3 else inner(t(1)), s.n


@program
def the_inner_one_is_replaced(compile):
    s = Bag(f=compile(lambda x: x + 1))
    outer = compile(lambda x: s.f(x) * 2)
    for k in range(8):
        yield outer(t(k))
        if k % 3 == 2:
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
def methods_of_many_objects(compile):
    class C:
        def __init__(self, k):
            self.k = k

        @compile
        def go(self, x):
            self.k += 1
            return x * self.k

    made = [C(float(k)) for k in range(3)]
    for k in range(9):
        yield made[k % 3].go(t(1)), [c.k for c in made]


@program
def arguments_die(compile):
    f = compile(lambda x: x * 2)
    refs = []
    for k in range(6):
        x = t(k)
        refs.append(weakref.ref(x))
        y = f(x)
        del x
        yield y, len(refs)
    gc.collect()
    yield [r() is None for r in refs]


@program
def results_die(compile):
    f = compile(lambda x: (x * 2, x + 1))
    refs = []
    for k in range(6):
        y, z = f(t(k))
        refs.append(weakref.ref(y))
        del y, z
        yield len(refs)
    gc.collect()
    yield [r() is None for r in refs]


@program
def attributes_that_were_replaced_die(compile):
    s = Bag(w=t(1))

    def step(x):
        s.w = s.w + x

    f = compile(step)
    refs = []
    for k in range(6):
        refs.append(weakref.ref(s.w))
        f(t(k))
        yield len(refs), s
    gc.collect()
    yield [r() is None for r in refs]


@program
def an_exception_goes_through_two(compile):
    s = Bag(k=1)

    def inner(x):
        if s.k > 2:
            raise ValueError(s.k)
        return x * s.k

    inner = compile(inner)

    def outer(x):
        try:
            return inner(x)
        except ValueError:
            return x - 1

    outer = compile(outer)
    for k in range(8):
        yield outer(t(k)), attempt(inner, t(k))
        s.k = k % 4


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


@program
def a_compiled_backward_hook(compile):
    s = Bag(k=1.0)
    double = compile(lambda g: g * s.k)
    for k in range(7):
        w = t(k, grad=True)
        y = w * 2
        y.register_hook(double)
        y.sum().backward()
        yield w
        s.k += 1
