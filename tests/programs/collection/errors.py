"""Exceptions: raised, caught, after writes; the state and tensors after them."""

from __future__ import annotations

import torch

from tests.programs.writing import Bag, attempt, calls, linear, program, t


@program
def what_is_done_before_it_raises(compile):
    """By Python, or by an operator."""
    s, net = Bag(w=t(1), u=t(2), n=0, bad=False), linear()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(x, y):
        net(x).square().sum().backward()
        opt.step()
        s.w.add_(x)
        s.u = s.u + x
        s.n += 1
        if s.bad:
            raise ValueError
        return x + y

    f = compile(step)
    for k in range(10):
        s.bad = k in (0, 4, 7)
        x = t(0.1 * k + 0.1, 0.2, 0.3)
        yield attempt(f, x, t(1, 2) if k in (2, 5) else x), s, net, opt
        opt.zero_grad() if k == 5 else None


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


KINDS = (None, StopIteration, GeneratorExit, KeyError, KeyboardInterrupt, NotImplementedError, None)


@program
def exceptions_of_all_kinds(compile):
    w = t(1)

    def step(x, kind):
        w.add_(x)
        if kind is not None:
            raise kind("bad")
        return x + w

    f = compile(step)
    for kind in KINDS:
        found = ""
        try:
            y = f(t(1), kind)
        except BaseException as error:
            y, found = None, type(error).__name__
        yield y, found, w


def _down(x, n):
    return x + 1 if n == 0 else _down(x, n - 1) * 2


calls("too_deep_a_recursion", _down, lambda: ((t(1), n) for n in (1, 2, 10**6, 1, 3, 2)))
calls("an_index_out_of_range", lambda x, i: x[i], lambda: ((t(1), i) for i in (0, 1, 5, 2, -4, 0)))


@program
def errors_in_backward(compile):
    s = Bag(bad=False)

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            if s.bad:
                raise ValueError("bad gradient")
            return g

    f = compile(lambda w: Bad.apply(w).sum().backward())
    for k in range(7):
        s.bad = k % 3 == 1
        w = t(k, grad=True)
        yield attempt(f, w), w
