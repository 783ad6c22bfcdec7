"""Hooks of modules, added, changed and removed between calls."""

from __future__ import annotations

from torch import nn

from tests.programs.writing import Bag, linear, program, t


@program
def a_forward_hook_keeps_activations(compile):
    model = nn.Sequential(linear(), nn.Tanh(), linear())
    kept = {}
    for name, part in model.named_children():
        part.register_forward_hook(lambda m, a, y, name=name: kept.__setitem__(name, y.detach()))
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        yield f(t(k)), kept
        if k == 4:
            kept.clear()


@program
def a_hook_that_removes_itself(compile):
    model, s = linear(), Bag(handle=None)

    def once(module, args, y):
        s.handle.remove()
        return y * 100

    f = compile(lambda x: model(x).detach())
    for k in range(8):
        if k % 3 == 1:
            s.handle = model.register_forward_hook(once)
        yield f(t(k)), len(model._forward_hooks)


@program
def a_backward_hook_comes_and_goes(compile):
    model = linear()

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        return model.weight.grad * 1

    f, handle = compile(step), None
    for k in range(8):
        yield f(t(k, grad=True))
        if k == 2:
            handle = model.register_full_backward_hook(lambda m, gi, go: None)
        if k == 3:
            model.weight.register_hook(lambda g: g * 3)
        if k == 5:
            handle.remove()


@program
def a_backward_hook_counts_and_scales(compile):
    model, s = linear(), Bag(n=0)

    def scale(module, into, out):
        s.n += 1
        return tuple(g if g is None else g * s.n for g in into)

    model.register_full_backward_hook(scale)

    def step(x):
        y = model(x).sum()
        y.backward()
        return y.detach()

    f = compile(step)
    for k in range(7):
        x = t(k, grad=True)
        yield f(x), x, s.n


@program
def a_global_hook_of_all_modules(compile):
    model = linear()
    f, handle = compile(lambda x: model(x).detach()), None
    try:
        for k in range(8):
            yield f(t(k))
            if k == 2:
                handle = nn.modules.module.register_module_forward_hook(lambda m, a, y: y + 7)
            if k == 5:
                handle.remove()
    finally:
        if handle:
            handle.remove()


@program
def a_hook_with_keyword_arguments(compile):
    class Net(nn.Module):
        def forward(self, x, k=1.0):
            return x * k

    net, seen = Net(), []
    net.register_forward_pre_hook(lambda m, a, kw: (a, {"k": kw["k"] * 2}), with_kwargs=True)
    net.register_forward_hook(lambda m, a, kw, y: seen.append(kw["k"]), with_kwargs=True)
    f = compile(lambda x, k: net(x, k=k))
    for k in range(7):
        yield f(t(1), float(k)), seen


@program
def parametrizations_come_and_go(compile):
    class Double(nn.Module):
        def forward(self, w):
            return w * 2

    model = linear()
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        yield f(t(k))
        if k == 2:
            nn.utils.parametrize.register_parametrization(model, "weight", Double())
        if k == 4:
            nn.utils.parametrize.remove_parametrizations(model, "weight")


@program
def spectral_norm_turns_its_vectors(compile):
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).to("jax")
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        yield f(t(k))
        model.train(k % 3 != 1)
