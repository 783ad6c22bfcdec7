"""Gradients: of arguments, captured leaves and non-leaves, twice, replaced, added up."""

from __future__ import annotations

import torch

from tests.programs.writing import Bag, attempt, calls, program, t


@program
def in_place_on_an_attribute_that_is_no_leaf(compile):
    w = t(1, grad=True)
    s = Bag(h=w * 2)

    def step(x):
        s.h.mul_(x)
        return s.h.sum()

    f = compile(step)
    for k in range(7):
        f(t(k + 1)).backward(retain_graph=True)
        yield s.h, w
        w.grad = None
        s.h = w * 2


@program
def in_place_on_a_view_of_a_non_leaf(compile):
    def step(x):
        x[0].mul_(5)
        return x * 1

    f = compile(step)
    for k in range(7):
        w = t(k, grad=True)
        x = w * 3
        y = f(x)
        y.sum().backward()
        yield y, x, w


@program
def writing_into_a_leaf_raises(compile):
    w = t(1, grad=True)

    def step(x):
        w.add_(x)
        return w * 1

    f = compile(step)
    for k in range(6):
        yield attempt(f, t(k)), w
        if k in (2, 4):
            w.requires_grad_(k == 4)


@program
def backward_twice(compile):
    """The second pass raises, but where the graph is kept or nothing was saved."""
    for function, kept in ((lambda w: w * w, False), (lambda w: w * w, True), (torch.neg, False)):
        f = compile(function)
        for k in range(4):
            w = t(k, grad=True)
            y = f(w).sum()
            y.backward(retain_graph=kept)
            yield y, attempt(y.backward), w


@program
def what_is_saved_is_written_before_backward(compile):
    w = t(0, grad=True)
    f = compile(lambda x: (w * w * x).exp())
    for k in range(7):
        y = f(t(k / 4))
        with torch.no_grad():
            w.add_(1) if k % 3 == 1 else y.mul_(2) if k % 3 == 2 else None
        yield attempt(y.sum().backward), w, y
        w.grad = None


@program
def gradients_add_up(compile):
    """Add gradients up in a tensor of another name, until it is dropped, zeroed or replaced."""
    w = t(1, grad=True)
    w.grad = kept = t(0)

    def step(x):
        (w * x).sum().backward()
        return w.grad * 1, kept * 1

    f = compile(step)
    for k in range(10):
        yield f(t(k)), w, kept
        if k == 2:
            w.grad.zero_()
        if k == 4:
            w.grad = None
        if k == 7:
            w.grad = t(100)


@program
def a_gradient_is_replaced_inside(compile):
    w = t(1, grad=True)

    def step(x):
        (w * x).sum().backward()
        w.grad = w.grad * 0.5
        return w.grad

    f = compile(step)
    for k in range(7):
        yield f(t(k)), w


def _twice(w):
    (g,) = torch.autograd.grad((w * w * w).sum(), w, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), w)
    return g.detach(), h


calls("gradients_of_gradients", _twice, lambda: ((t(k, grad=True),) for k in range(6)))


@program
def some_gradients_are_wanted(compile):
    a, b = t(1, grad=True), t(2, grad=True)

    def step(x, on):
        b.requires_grad_(on)
        return (x * a * b).sum()

    f = compile(step)
    for k in range(8):
        y = f(t(k), k % 3 != 1)
        y.backward() if y.requires_grad else None
        yield y, a, b
        a.requires_grad_(k % 2 == 0)
        a.grad = b.grad = None


@program
def a_detached_result_shares_memory(compile):
    f = compile(lambda x: (x, x.detach(), x.data))
    for k in range(6):
        x = t(k, grad=True)
        y, d, data = f(x)
        d.add_(1)
        yield x, y is x, d, data
