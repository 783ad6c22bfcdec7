"""Modes: grad mode, dtypes, autocast, train and eval, patched functions, tensor subclasses."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.programs.writing import Bag, attempt, linear, program, t


@program
def grad_mode_outside(compile):
    w = t(1, grad=True)
    f = compile(lambda x: x * w)
    for k in range(8):
        with torch.set_grad_enabled(k % 3 != 1):
            y = f(t(k))
        yield y
        if y.requires_grad:
            y.sum().backward()
            yield w


@program
def grad_mode_inside_by_a_flag(compile):
    w, s = t(1, grad=True), Bag(on=True)

    def step(x):
        with torch.set_grad_enabled(s.on):
            y = x * w
        return y, torch.is_grad_enabled()

    f = compile(step)
    for k in range(7):
        yield f(t(k))
        s.on = k % 2 == 1


@program
def the_default_dtype_changes(compile):
    f = compile(lambda x: (torch.ones(3, device="jax") * 2, x * 2.5, torch.get_default_dtype()))
    for k in range(7):
        torch.set_default_dtype((torch.float32, torch.float64, torch.bfloat16)[k % 3])
        yield f(t(1)), f(t(1, dtype=torch.int64))
    torch.set_default_dtype(torch.float32)


@program
def the_default_device_changes(compile):
    f = compile(lambda x: (torch.ones(3).device.type, x + torch.ones(3).to("jax")))
    for k in range(6):
        with torch.device("jax" if k % 2 else "cpu"):
            yield f(t(k))


@program
def autocast_outside(compile):
    layer = linear()
    f = compile(lambda x: layer(x).detach())
    x = t(1, 2, 3)
    for k in range(7):
        with torch.autocast("jax", dtype=torch.bfloat16, enabled=k % 2 == 1):
            yield f(x)


@program
def train_and_eval_of_batch_norm(compile):
    model = nn.BatchNorm1d(3).to("jax")
    f = compile(lambda x: model(x).detach())
    for k in range(7):
        model.train(k % 3 != 1)
        yield f(torch.stack([t(k), t(1.0, 5.0, k)])), model


@program
def the_probability_of_dropout_changes(compile):
    drop = nn.Dropout(0.0)
    f = compile(lambda x: drop(x))
    for k in range(8):
        drop.p = (0.0, 1.0, 0.0, 0.5)[k % 4]
        torch.manual_seed(k)
        yield f(t(k))


@program
def a_function_of_torch_is_patched(compile):
    old = torch.sin
    f = compile(lambda x: torch.sin(x))
    try:
        for k in range(8):
            yield f(t(k))
            torch.sin = (lambda x: x * 100) if k in (2, 3, 5) else old
    finally:
        torch.sin = old


@program
def the_forward_of_an_instance_is_patched(compile):
    net = linear()
    f = compile(lambda x: net(x).detach())
    for k in range(8):
        yield f(t(k))
        if k == 2:
            net.forward = lambda x: x * 2
        if k == 5:
            del net.forward


@program
def a_dispatch_mode_after_the_first_call(compile):
    seen = []

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__.partition(".")[0])
            return func(*args, **(kwargs or {}))

    f = compile(lambda x: x * 2 + 1)
    for k in range(7):
        if k % 3 == 2:
            with Counts():
                yield f(t(k)), len(seen) > 0
        else:
            yield f(t(k)), len(seen) > 0
        seen.clear()


@program
def a_subclass_with_torch_function(compile):
    class Logged(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            Logged.calls += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    f = compile(lambda x: x * 2 + 1)
    for k in range(6):
        y = f(t(k).as_subclass(Logged))
        yield type(y).__name__, y.as_subclass(torch.Tensor), Logged.calls > 0


@program
def a_mode_is_entered_and_left_apart(compile):
    w, s = t(1, grad=True), Bag(guard=None)

    def enter(x):
        s.guard = torch.no_grad()
        s.guard.__enter__()
        return x * w

    def leave(x):
        s.guard.__exit__(None, None, None)
        return x * w

    f, g = compile(enter), compile(leave)
    for k in range(6):
        yield f(t(k)), torch.is_grad_enabled()
        yield g(t(k)), torch.is_grad_enabled()


@program
def inference_mode_inside(compile):
    w = t(1, grad=True)

    def step(x):
        with torch.inference_mode():
            return x * w

    f = compile(step)
    for k in range(6):
        y = f(t(k))
        yield y, y.is_inference(), attempt(lambda y=y: y * w)


@program
def grad_mode_is_left_changed(compile):
    def step(x):
        torch.set_grad_enabled(False)
        return x * 2

    f = compile(step)
    for _ in range(6):
        torch.set_grad_enabled(True)
        yield f(t(1)), torch.is_grad_enabled()
    torch.set_grad_enabled(True)


@program
def the_default_dtype_is_left_changed(compile):
    s = Bag(dtype=torch.float64)

    def step(x):
        torch.set_default_dtype(s.dtype)
        return x * 2

    f = compile(step)
    for k in range(7):
        yield f(t(1)), torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        s.dtype = (torch.float32, torch.float64)[k % 2]
    torch.set_default_dtype(torch.float32)
