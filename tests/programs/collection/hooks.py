"""Hooks of modules, leaves and results, added and removed between calls."""

from __future__ import annotations

from torch import nn

from tests.programs.writing import Bag, linear, program, t


@program
def backward_hooks_come_and_go(compile):
    model, s = linear(), Bag(n=0)

    def scale(module, into, out):
        s.n += 1
        return tuple(g if g is None else g * s.n for g in into)

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        return model.weight.grad * 1

    f, handle = compile(step), None
    for k in range(8):
        x = t(k, grad=True)
        yield f(x), x, s.n
        if k == 2:
            handle = model.register_full_backward_hook(scale)
        if k == 3:
            model.weight.register_hook(lambda g: g * 3)
        if k == 5:
            handle.remove()


@program
def a_compiled_hook_of_a_result(compile):
    s = Bag(k=1.0)
    scale = compile(lambda g: g * s.k)

    def step(w, inside):
        y = w * 2
        y.register_hook(scale) if inside else None
        return y

    f = compile(step)
    for k in range(8):
        w = t(k, grad=True)
        y = f(w, k % 2 == 1)
        y.register_hook(scale) if k % 4 else None
        y.sum().backward()
        yield w
        s.k += 1


@program
def a_hook_of_a_leaf_comes_and_goes(compile):
    w = t(1, grad=True)

    def step(x):
        (w * x).sum().backward()
        return w.grad * 1

    f, handle = compile(step), None
    for k in range(8):
        yield f(t(k))
        w.grad = None
        if k % 3 == 1:
            handle = w.register_hook(lambda g: g * 10)
        if k % 3 == 2 and handle:
            handle.remove()


@program
def spectral_norm_turns_its_vectors(compile):
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).to("jax")
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        yield f(t(k))
        model.train(k % 3 != 1)
