"""Hooks of modules, added, changed and removed between calls."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import prune

from tests.programs.writing import Bag, linear, program, t


@program
def a_forward_hook_comes_and_goes(compile):
    model = linear()
    f, handle = compile(lambda x: model(x).detach()), None
    for k in range(8):
        yield f(t(k))
        if k == 2:
            handle = model.register_forward_hook(lambda m, a, y: y * 2)
        if k == 5:
            handle.remove()


@program
def a_forward_hook_reads_a_number(compile):
    model, s = linear(), Bag(k=1.0)
    model.register_forward_hook(lambda m, a, y: y * s.k)
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        yield f(t(k))
        s.k = float(k)


@program
def a_forward_hook_counts(compile):
    model, s = linear(), Bag(n=0)

    def count(module, args, y):
        s.n += 1

    model.register_forward_hook(count)
    f = compile(lambda x: model(x).detach() * s.n)
    for k in range(7):
        yield f(t(k)), s.n


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
def a_forward_hook_appends_activations(compile):
    model, kept = linear(), []
    model.register_forward_hook(lambda m, a, y: kept.append(y.detach()))
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        yield f(t(k)), kept


@program
def a_pre_hook_changes_arguments(compile):
    model, s = linear(), Bag(k=1.0)
    f = compile(lambda x: model(x).detach())
    for k in range(8):
        yield f(t(k))
        if k == 2:
            model.register_forward_pre_hook(lambda m, args: (args[0] * s.k,))
        s.k += 1


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
def a_backward_pre_hook_comes_and_goes(compile):
    model = nn.Sequential(linear(), linear())

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        return model[0].weight.grad * 1

    f, handle = compile(step), None
    for k in range(8):
        yield f(t(k))
        if k == 2:
            handle = model[1].register_full_backward_pre_hook(lambda m, out: (out[0] * 3,))
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
def a_backward_hook_outside(compile):
    model, s = linear(), Bag(k=1.0)
    model.register_full_backward_hook(lambda m, into, out: (into[0] * s.k,))
    f = compile(lambda x: model(x).sum())
    for k in range(7):
        x = t(k, grad=True)
        y = f(x)
        s.k += 1
        y.backward()
        yield x


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
def hooks_run_in_their_order(compile):
    model = linear()
    model.register_forward_hook(lambda m, a, y: y + 1)
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        yield f(t(k))
        if k == 2:
            model.register_forward_hook(lambda m, a, y: y * 2)
        if k == 4:
            model.register_forward_hook(lambda m, a, y: y - 5, prepend=True)


@program
def a_hook_is_exchanged_in_its_dict(compile):
    model = linear()
    handle = model.register_forward_hook(lambda m, a, y: y + 1)
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        yield f(t(k))
        model._forward_hooks[handle.id] = lambda m, a, y, k=k: y * (k + 1)


@program
def a_state_dict_hook(compile):
    model, s = linear(), Bag(n=0)

    def count(module, state, prefix, meta):
        s.n += 1

    model.register_state_dict_post_hook(count)
    f = compile(lambda x: x * len(model.state_dict()) + s.n)
    for k in range(6):
        yield f(t(k)), s.n


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
def a_mask_of_pruning(compile):
    model = linear()
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        yield f(t(k))
        if k == 2:
            prune.l1_unstructured(model, "weight", amount=0.5)
        if k == 4:
            prune.remove(model, "weight")


@program
def spectral_norm_turns_its_vectors(compile):
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).to("jax")
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        yield f(t(k))
        model.train(k % 3 != 1)


@program
def torch_function_modes(compile):
    from torch.overrides import TorchFunctionMode

    class Doubling(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out * 2 if func is torch.sin else out

    f = compile(lambda x: torch.sin(x))
    for k in range(7):
        if k % 3 == 1:
            with Doubling():
                yield f(t(k))
        else:
            yield f(t(k))
