# ruff: noqa
"""Small programs of which something changes between the calls, each for a kind of staleness.

A program is a generator function of a device and a decorator: it makes a function, decorates it,
calls it, changes something, calls again. What it yields must be the same eagerly on the CPU and
under ``torch_jax.jit``.
"""

from __future__ import annotations

import collections
import contextvars
import copy
import dataclasses
import decimal
import functools
import io
import itertools
import math
import os
import queue
import random
import threading
import time
import warnings
import weakref
from os import getenv
from types import SimpleNamespace as S

import numpy as np
import torch
from torch import nn

PROGRAMS = {}
CALLS = 4


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def ones(device, *shape, **kw):
    return (
        torch.arange(1.0, 1 + math.prod(shape or (3,)), device=device)
        .reshape(shape or (3,))
        .requires_grad_(kw.get("grad", False))
    )


def changing(change, function, given=lambda d: S(t=torch.ones(3, device=d), k=2.0), args=None):
    """A program: call, and before each later call ``change`` the state ``c``."""

    def run(device, jit):
        c = given(device)
        f = jit(functools.partial(function, c)) if args is None else jit(lambda *a: function(c, *a))
        for index in range(CALLS + 1):
            if index:
                change(c, index)
            x = ones(device)
            yield f(x) if args is None else f(*args(device, index))
            yield vars(c) if hasattr(c, "__dict__") and not isinstance(c, nn.Module) else None

    return run


def add(name, *args, **kwargs):
    PROGRAMS[name] = changing(*args, **kwargs)


NOTHING = lambda c, i: None  # noqa: E731

# --- a tensor put back though another stands in its place ------------------------------------------


def two(d):
    return S(a=torch.ones(3, device=d), b=torch.full((3,), 2.0, device=d))


def rotate(c, x):
    y = x + c.b
    c.b = c.a
    c.a = x * 1
    return y


def swap(c, x):
    c.a, c.b = c.b, c.a
    return x + c.a - 2 * c.b


def swap_in_list(c, x):
    c.l[0], c.l[1] = c.l[1], c.l[0]
    return x * c.l[0]


def rotate_deque(c, x):
    c.q.append(x * 2)
    old = c.q.popleft()
    return old + x


def swap_data(c, x):
    c.a.data, c.b.data = c.b.data, c.a.data
    return x * c.a


def renew(c, i):
    c.a = c.a * i


def set_t(c, i):
    c.t = torch.full_like(c.t, float(i))


add("rotates_attributes", NOTHING, rotate, two)
add("swaps_attributes", NOTHING, swap, two)
add("swaps_attributes_that_are_replaced", renew, swap, two)
add("returns_an_attribute", set_t, lambda c, x: c.t)
add("returns_an_attribute_in_a_dict", set_t, lambda c, x: {"t": c.t, "y": x + c.t})
add("keeps_an_attribute", set_t, lambda c, x: (setattr(c, "kept", c.t), x + c.t)[1])
add("swaps_in_a_list", NOTHING, swap_in_list, lambda d: S(l=list(vars(two(d)).values())))
add("rotates_a_deque", NOTHING, rotate_deque,
    lambda d: S(q=collections.deque(vars(two(d)).values())))  # fmt: skip
add("swaps_data", NOTHING, swap_data, two)


@program
def is_the_same_object(device, jit):
    c = S(t=torch.ones(2, device=device))
    f = jit(lambda: c.t)
    for _ in range(4):
        yield f() is c.t
        c.t = torch.ones(2, device=device)


# --- autograd at the border -------------------------------------------------------------------------


@program
def in_place_on_no_leaf(device, jit):
    f = jit(lambda y: y.mul_(3.0))
    for _ in range(4):
        x = ones(device, 3, grad=True)
        y = x * 2
        f(y).sum().backward()
        yield x.grad, y.requires_grad, y._version


@program
def in_place_on_an_attribute_that_requires_grad(device, jit):
    c = S(y=None)
    w = ones(device, 3, grad=True)

    @jit
    def f(x):
        c.y.add_(x * w)
        return c.y.sum()

    for _ in range(4):
        c.y = w * 2
        w.grad = None
        f(ones(device))
        c.y.sum().backward()
        yield w.grad


@program
def returns_a_view_of_an_argument(device, jit):
    f = jit(lambda x: x.view(-1))
    for _ in range(4):
        w = ones(device, 2, 2, grad=True)
        x = w * 1
        y = f(x)
        y.mul_(2)
        x.sum().backward()
        yield w.grad, y, x, y._is_view()


def outcome(function):
    try:
        return function()
    except Exception as error:
        return type(error).__name__


@program
def writes_into_a_leaf(device, jit):
    f = jit(lambda x: x.mul_(2))
    for _ in range(4):
        x = ones(device, 3, grad=True)
        yield outcome(lambda: f(x)), x
    y = ones(device, 3)
    yield f(y), y


def backward_twice(f, w):
    for _ in range(4):
        w.grad = None
        loss = f(ones(w.device))
        loss.backward()
        yield outcome(loss.backward), w.grad


@program
def second_backward(device, jit):
    w = ones(device, 3, grad=True)
    yield from backward_twice(jit(lambda x: (x * w).sin().sum()), w)


@program
def second_backward_that_saved_nothing(device, jit):
    w = ones(device, 3, grad=True)
    yield from backward_twice(jit(lambda x: (x + w).sum()), w)


@program
def written_between_forward_and_backward(device, jit):
    w = ones(device, 3, grad=True)
    f = jit(lambda x: (x * w * w).sum())
    for _ in range(4):
        loss = f(ones(device))
        with torch.no_grad():
            w.add_(1)
        yield outcome(loss.backward)


@program
def retained_backward(device, jit):
    w = ones(device, 3, grad=True)
    f = jit(lambda x: (x * w).sin().sum())
    for _ in range(4):
        w.grad = None
        loss = f(ones(device))
        loss.backward(retain_graph=True)
        loss.backward()
        yield w.grad


class Scaled(torch.autograd.Function):
    factor = [2.0]

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * Scaled.factor[0]


@program
def a_function_whose_backward_reads_state(device, jit):
    f = jit(lambda x: Scaled.apply(x).sum())
    for index in range(4):
        Scaled.factor[0] = float(index + 2)
        x = ones(device, 3, grad=True)
        f(x).backward()
        yield x.grad


@program
def a_hook_that_reads_state(device, jit):
    c = S(k=1.0)

    def function(x):
        y = x * 2
        y.register_hook(lambda g: g * c.k)
        return y.sum()

    f = jit(function)
    for index in range(4):
        c.k = float(index + 2)
        x = ones(device, 3, grad=True)
        f(x).backward()
        yield x.grad


# --- what comes later ---------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        with torch.no_grad():
            self.lin.weight.copy_(torch.eye(3))
            self.lin.bias.zero_()


class WithBuffer(Net):
    def forward(self, x):
        if not hasattr(self, "seen"):
            return x
        return x + self.seen


class WithHead(Net):
    def forward(self, x):
        head = getattr(self, "head", None)
        return x if head is None else head(x)


def later(name, change, kind):
    def run(device, jit):
        model = kind().to(device)
        f = jit(lambda x: model(x))
        for index in range(5):
            if index == 2:
                change(model, device)
            yield f(ones(device)).detach()

    PROGRAMS[name] = run


later("a_buffer_that_comes_later",
      lambda m, d: m.register_buffer("seen", torch.ones(3, device=d)), WithBuffer)  # fmt: skip
later("a_module_that_comes_later", lambda m, d: m.add_module("head", m.lin), WithHead)
later("a_parameter_that_comes_later",
      lambda m, d: setattr(m, "seen", nn.Parameter(torch.ones(3, device=d))), WithBuffer)  # fmt: skip


class Config:
    pass


@program
def a_class_attribute_that_comes_later(device, jit):
    class C:
        pass

    c = C()
    f = jit(lambda x: x * getattr(c, "k", 1.0))
    for index in range(5):
        if index == 2:
            C.k = 3.0
        if index == 4:
            c.k = 4.0
        yield f(ones(device))


@program
def an_attribute_error_that_goes(device, jit):
    c = Config()

    @jit
    def f(x):
        try:
            return x * c.k
        except AttributeError:
            return x

    for index in range(5):
        if index == 2:
            c.k = 3.0
        yield f(ones(device))


@program
def parameters_that_come_later(device, jit):
    model = Net().to(device)
    f = jit(lambda x: x + sum(p.sum() for p in model.parameters()))
    for index in range(5):
        if index == 2:
            model.extra = nn.Parameter(torch.ones(2, device=device))
        yield f(ones(device)).detach()


# --- optimizers ------------------------------------------------------------------------------------------


def trained(change):
    def run(device, jit):
        p = nn.Parameter(torch.ones(3, device=device))
        opt = torch.optim.Adam([p], lr=0.1)

        @jit
        def step(x):
            opt.zero_grad()
            loss = (p * x).square().sum()
            loss.backward()
            opt.step()
            return loss

        for index in range(6):
            if index in (2, 4):
                change(opt, p)
            yield step(ones(device)).detach(), p

    return run


PROGRAMS["optimizer_state_that_is_cleared"] = trained(lambda opt, p: opt.state.clear())
PROGRAMS["optimizer_state_that_is_deleted"] = trained(lambda opt, p: opt.state.pop(p, None))

# --- arguments -----------------------------------------------------------------------------------------


def called(name, function, arguments):
    def run(device, jit):
        f = jit(function)
        for given in arguments(device):
            args, kwargs = (
                given
                if isinstance(given, tuple)
                and len(given) == 2
                and isinstance(given[1], dict)
                and isinstance(given[0], tuple)
                else ((given,), {})
            )
            yield f(*args, **kwargs)

    PROGRAMS[name] = run


def dicts(d):
    a, b = ones(d), ones(d) * 2
    for _ in range(2):
        yield {"a": a, "b": b}
        yield {"b": b, "a": a}


def alternating(g):
    y = 0
    for v in g.values():
        y = y * 2 + v
    return y


called("the_order_of_a_dict", alternating, dicts)
called("the_keys_of_a_dict", lambda g: list(g), dicts)
called("the_order_of_nested_dicts", lambda g: alternating(g[0]), lambda d: ([g] for g in dicts(d)))
called("the_order_of_keywords", lambda **g: alternating(g), lambda d: (((), g) for g in dicts(d)))


@dataclasses.dataclass
class Half:
    a: float
    b: float = dataclasses.field(default=1.0, compare=False)


class Equal:
    def __init__(self, k):
        self.k = k

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: float
    b: float = dataclasses.field(default=1.0, compare=False)


def with_x(*values):
    return lambda d: (((ones(d), value), {}) for value in values)


called("a_field_that_is_not_compared", lambda x, c: x * c.b,
       with_x(Half(1, 2), Half(1, 3), Half(1, 4), Half(1, 5)))  # fmt: skip
called("a_frozen_field_that_is_not_compared", lambda x, c: x * c.b,
       with_x(Frozen(1, 2), Frozen(1, 3), Frozen(1, 4), Frozen(1, 5)))  # fmt: skip
called("an_eq_of_ones_own", lambda x, c: x * c.k, with_x(*map(Equal, (2, 3, 4, 5))))
called("decimals", lambda x, c: str(c), with_x(*map(decimal.Decimal, ("1.0", "1.00", "1", "1.0"))))
called("numpy_numbers", lambda x, k: x * k, with_x(*map(np.float64, (1, 2, 3, 4, 5))))
called("numpy_float32", lambda x, k: x * float(k), with_x(*map(np.float32, (1, 2, 3, 4, 5))))
called("zeros_of_both_signs", lambda x, k: math.copysign(1, k) * x, with_x(0.0, -0.0, 0.0, -0.0))
called("complex_zeros", lambda x, k: math.copysign(1, k.imag) * x,
       with_x(0j, complex(0, -0.0), 0j, complex(0, -0.0)))  # fmt: skip
called("numbers_of_classes", lambda x, k: (str(k), x * k), with_x(1, True, 1.0, 1))


def tagged(d):
    for k in (2, 3, 4, None, 5):
        x = ones(d)
        if k:
            x.k = k
        yield x


called("attributes_of_arguments", lambda x: x * getattr(x, "k", 1), tagged)
called("attributes_of_arguments_that_come_later", lambda x: x * getattr(x, "k", 1),
       lambda d: reversed(list(tagged(d))))  # fmt: skip
called("classes_of_arguments", lambda x: (type(x).__name__, isinstance(x, nn.Parameter)),
       lambda d: (t for _ in range(2) for t in (
           ones(d, 3, grad=True), nn.Parameter(ones(d)))))  # fmt: skip
called("leaves_among_arguments", lambda x: (x.is_leaf, x.detach() * 1),
       lambda d: (t for _ in range(2) for t in (
           ones(d, 3, grad=True), ones(d, 3, grad=True) * 1)))  # fmt: skip


def pairs(d):
    x, y = ones(d), ones(d)
    for _ in range(2):
        yield (x, y), {}
        yield (x, x), {}
        yield (x, x.view(3)), {}


called("identical_arguments", lambda x, y: x * (2 if x is y else 3), pairs)
called("offsets_of_arguments", lambda x: x.storage_offset(),
       lambda d: (ones(d, 4, 3)[i] for i in (0, 1, 2, 3)))  # fmt: skip
called("a_shape_comes_back", lambda x: (type(x.shape).__name__, x.shape, {"s": x.shape}),
       lambda d: (ones(d) for _ in range(4)))  # fmt: skip


@program
def the_class_of_a_shape(device, jit):
    f = jit(lambda x: x.shape)
    for _ in range(4):
        yield type(f(ones(device))).__name__
