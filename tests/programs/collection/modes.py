"""Modes: grad mode, dtypes, autocast, modes of dispatch, tensor subclasses."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.programs.writing import Bag, attempt, program, t

AROUND = (
    nullcontext,
    torch.no_grad,
    lambda: torch.autocast("jax", dtype=torch.bfloat16),
    torch.inference_mode,
)


@program
def modes_around_calls(compile):
    w = t(1, 2, 3, grad=True)
    f = compile(lambda x: (x * w, torch.nn.functional.linear(x, w)))
    for k in range(9):
        with AROUND[k % 4]():
            y, z = f(t(k))
        yield y, z, y.is_inference()
        if y.requires_grad:
            y.sum().backward()
            yield w


@program
def modes_inside_by_a_flag(compile):
    w = t(1, grad=True)

    def step(x, mode):
        with mode():
            y = x * w
        return y, x * w, torch.is_grad_enabled()

    f = compile(step)
    for k in range(7):
        y, *more = f(t(k), (nullcontext, torch.no_grad, torch.inference_mode)[k % 3])
        yield y, more, y.is_inference(), attempt(lambda y=y: y * w)


@program
def the_default_dtype_and_device_change(compile):
    f = compile(lambda x: (torch.ones(3), torch.ones(3, device="jax") * 2, x * 2.5))
    for k in range(7):
        torch.set_default_dtype((torch.float32, torch.float64, torch.bfloat16)[k % 3])
        with torch.device("jax" if k % 2 else "cpu"):
            ones, *more = f(t(1, dtype=(torch.float32, torch.int64)[k % 2]))
        yield ones.device.type, more
    torch.set_default_dtype(torch.float32)


@program
def a_dispatch_mode_after_the_first_call(compile):
    seen = []

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__.partition(".")[0])
            return func(*args, **(kwargs or {}))

    f = compile(lambda x: x * 2 + 1)
    for k in range(7):
        with Counts() if k % 3 == 2 else nullcontext():
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
def modes_are_left_changed(compile):
    def step(x, dtype):
        torch.set_grad_enabled(dtype is torch.float64)
        torch.set_default_dtype(dtype)
        return x * 2

    f = compile(step)
    for k in range(6):
        y = f(t(k, grad=True), (torch.float32, torch.float64)[k % 2])
        yield y, torch.is_grad_enabled(), torch.get_default_dtype()
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
