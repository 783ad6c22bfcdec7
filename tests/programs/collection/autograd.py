"""Gradients: of arguments, captured leaves and non-leaves, twice, replaced, added up."""

from __future__ import annotations

import torch

from tests.programs.writing import Bag, attempt, program, t


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
        if k == 2:
            w.requires_grad_(False)
        if k == 4:
            w.requires_grad_(True)


@program
def backward_twice_raises(compile):
    f = compile(lambda w: (w * w).sum())
    for k in range(6):
        w = t(k, grad=True)
        y = f(w)
        yield attempt(y.backward), attempt(y.backward), w


@program
def backward_twice_with_retain_graph(compile):
    f = compile(lambda w: (w * w).sum())
    for k in range(6):
        w = t(k, grad=True)
        y = f(w)
        y.backward(retain_graph=True)
        y.backward()
        yield y, w


@program
def backward_twice_where_nothing_is_saved(compile):
    f = compile(lambda w, k: (w + k).sum())
    for k in range(6):
        w = t(1, grad=True)
        y = f(w, k)
        yield y, attempt(y.backward), attempt(y.backward), w


@program
def a_parameter_is_written_before_backward(compile):
    w = t(1, grad=True)
    f = compile(lambda x: (w * w * x).sum())
    for k in range(6):
        y = f(t(k))
        with torch.no_grad():
            w.add_(1) if k % 2 else None
        yield attempt(y.backward), w
        w.grad = None


@program
def a_result_is_written_before_backward(compile):
    f = compile(lambda w: w.exp())
    for k in range(6):
        w = t(k / 4, grad=True)
        y = f(w)
        if k % 2:
            with torch.no_grad():
                y.mul_(2)
        yield attempt(y.sum().backward), w


@program
def gradients_add_up(compile):
    w = t(1, grad=True)

    def step(x):
        (w * x).sum().backward()
        return w.grad * 1

    f = compile(step)
    for k in range(8):
        yield f(t(k)), w
        if k == 3:
            w.grad = None
        if k == 5:
            w.grad.zero_()


@program
def a_gradient_is_replaced_outside(compile):
    w = t(1, grad=True)

    def step(x):
        (w * x).sum().backward()
        w.grad = w.grad * 0.5
        return w.grad

    f = compile(step)
    for k in range(8):
        yield f(t(k)), w
        if k == 4:
            w.grad = t(100)


@program
def an_alias_of_a_gradient(compile):
    w = t(1, grad=True)
    w.grad = t(0)
    kept = w.grad

    def step(x):
        (w * x).sum().backward()
        return kept * 1

    f = compile(step)
    for k in range(7):
        yield f(t(k)), w, kept
        if k == 4:
            w.grad = None


@program
def gradients_of_gradients(compile):
    def step(w):
        y = (w * w * w).sum()
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), w)
        return g.detach(), h

    f = compile(step)
    for k in range(6):
        yield f(t(k, grad=True))


@program
def some_gradients_are_wanted(compile):
    a, b = t(1, grad=True), t(2, grad=True)
    f = compile(lambda x: (x * a * b).sum())
    for k in range(8):
        f(t(k)).backward() if a.requires_grad or b.requires_grad else None
        yield a, b
        a.requires_grad_(k % 2 == 0)
        b.requires_grad_(k % 3 != 1)
        a.grad = b.grad = None


@program
def requires_grad_is_set_inside(compile):
    s = Bag(w=t(1))

    def step(x, on):
        s.w.requires_grad_(on)
        return x * s.w

    f = compile(step)
    for k in range(7):
        yield f(t(k), k % 3 == 1), s.w


@program
def a_detached_result_shares_memory(compile):
    f = compile(lambda x: (x, x.detach(), x.data))
    for k in range(6):
        x = t(k, grad=True)
        y, d, data = f(x)
        d.add_(1)
        yield x, y is x, d, data
