"""Exceptions: raised, caught, after writes; the state and tensors after them."""

from __future__ import annotations

import contextlib

import torch

from tests.programs.writing import Bag, attempt, linear, program, t


@program
def a_write_before_it_raises(compile):
    s = Bag(w=t(1), n=0, bad=False)

    def step(x):
        s.w.add_(x)
        s.n += 1
        if s.bad:
            raise ValueError
        return s.w * s.n

    f = compile(step)
    for k in range(9):
        s.bad = k % 3 == 2
        yield attempt(f, t(k)), s


@program
def a_replacement_before_it_raises(compile):
    s = Bag(w=t(1), log=[], bad=False)

    def step(x):
        s.w = s.w + x
        s.log.append(len(s.log))
        if s.bad:
            raise KeyError("bad")
        return s.w

    f = compile(step)
    for k in range(9):
        s.bad = k in (0, 4, 7)
        yield attempt(f, t(k)), s


@program
def gradients_before_it_raises(compile):
    w, s = t(1, grad=True), Bag(bad=False)

    def step(x):
        (w * x).sum().backward()
        if s.bad:
            raise ValueError
        return x + 1

    f = compile(step)
    for k in range(8):
        s.bad = k % 3 == 1
        yield attempt(f, t(k)), w


@program
def an_optimizer_before_it_raises(compile):
    net, s = linear(), Bag(bad=False)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(x):
        opt.zero_grad()
        net(x).square().sum().backward()
        opt.step()
        if s.bad:
            raise ValueError

    f = compile(step)
    for k in range(8):
        s.bad = k in (0, 3, 6)
        yield attempt(f, t(0.1 * k + 0.1, 0.2, 0.3)), net, opt


@program
def an_operator_raises_after_a_write(compile):
    w = t(1)

    def step(x, y):
        w.add_(x)
        return x + y

    f = compile(step)
    for k in range(7):
        yield attempt(f, t(1), t(1, 2) if k % 3 == 1 else t(k)), w


@program
def an_index_out_of_range(compile):
    f = compile(lambda x, i: x[i])
    for k in range(7):
        yield attempt(f, t(1), (0, 1, 5, 2, -1, -4, 0)[k])


@program
def an_index_tensor_out_of_range(compile):
    w = t(1)

    def step(i):
        w.add_(1)
        return w[i]

    f = compile(step)
    for k in range(7):
        i = torch.tensor([(0, 1, 5, 2, 2, 7, 0)[k]]).to("jax")
        out = attempt(f, i)
        yield out if isinstance(out, type) else out * 1


@program
def with_after_an_error(compile):
    s = Bag(bad=False, log=[])

    @contextlib.contextmanager
    def scope():
        s.log.append("in")
        try:
            yield
        except ValueError:
            s.log.append("caught")
        finally:
            s.log.append("out")

    def step(x):
        with scope():
            if s.bad:
                raise ValueError
            return x + 1
        return x - 1

    f = compile(step)
    for k in range(8):
        s.bad = k % 3 == 2
        yield f(t(1)), list(s.log)
        s.log.clear()


@program
def stop_iteration_and_friends(compile):
    kinds = (StopIteration, GeneratorExit, KeyError, LookupError, NotImplementedError, OSError)

    def step(x, kind):
        if kind is not None:
            raise kind("bad")
        return x + 1

    f = compile(step)
    for kind in (None, *kinds, None):
        try:
            yield f(t(1), kind)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not error.args:
                raise
            yield type(error).__name__


@program
def a_keyboard_interrupt(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        if s.n % 3 == 0:
            raise KeyboardInterrupt
        return x * s.n

    f = compile(step)
    for _ in range(8):
        try:
            yield f(t(1)), s.n
        except KeyboardInterrupt:
            yield "interrupted", s.n


@program
def too_deep_a_recursion(compile):
    def down(x, n):
        return x if n == 0 else down(x, n - 1)

    f = compile(lambda x, n: down(x, n) + 1)
    for n in (1, 2, 10**6, 1, 3, 2):
        yield attempt(f, t(1), n)


@program
def errors_in_backward(compile):
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            if s.bad:
                raise ValueError("bad gradient")
            return g

    s = Bag(bad=False)

    def step(w):
        Bad.apply(w).sum().backward()

    f = compile(step)
    for k in range(7):
        s.bad = k % 3 == 1
        w = t(k, grad=True)
        yield attempt(f, w), w


@program
def a_tensor_hook_that_raises(compile):
    s = Bag(bad=False)

    def check(g):
        if s.bad:
            raise ValueError("bad gradient")
        return g * 2

    def step(w):
        y = w * 2
        y.register_hook(check)
        y.sum().backward()

    f = compile(step)
    for k in range(7):
        w = t(k, grad=True)
        try:
            out = f(w)
        except ValueError as error:
            out = str(error)
        yield out, w
        s.bad = k % 3 == 1
