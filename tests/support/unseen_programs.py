# ruff: noqa
"""Programs whose Python nobody sees, whose effects are lost easily, or that change each time.

They join the table of :mod:`tests.support.stale_programs`.
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

from tests.support.stale_programs import (
    CALLS,
    NOTHING,
    PROGRAMS,
    Config,
    Half,
    Net,
    add,
    called,
    changing,
    ones,
    outcome,
    program,
    set_t,
    two,
    with_x,
)


# --- Python that nobody sees ---------------------------------------------------------------------------


def imports(c, x):
    import math as m

    return x * m.sqrt(c.k)


MODULE_K = [2.0]
SCALE = 2.0


def set_scale(c, i):
    global SCALE
    SCALE = float(i)


def set_k(c, i):
    c.k = float(i)


class Sub(dict):
    pass


def subclass(d):
    s = Sub(a=1.0)
    s.k = 2.0
    return S(s=s)


def matches(c, x):
    match c.v:
        case Half(a=2.0):
            return x * 2
        case Half():
            return x * 3
    return x


add("imports_inside", set_k, imports)
add("reads_globals_by_text", set_scale, lambda c, x: x * globals()["SCALE"],
    lambda d: (set_scale(None, 2), S())[1])  # fmt: skip
add("reads_the_environment", lambda c, i: os.environ.__setitem__("TJ_TEST", str(i)),
    lambda c, x: x * float(getenv("TJ_TEST", "7")),
    lambda d: (os.environ.pop("TJ_TEST", None), S())[1])  # fmt: skip
add("takes_a_dataclass_apart", lambda c, i: setattr(c.v, "b", float(i)),
    lambda c, x: x * dataclasses.asdict(c.v)["b"], lambda d: S(v=Half(1.0)))  # fmt: skip
add("matches_classes", lambda c, i: setattr(c.v, "a", float(i)), matches, lambda d: S(v=Half(1.0)))
add("attributes_of_a_dict", lambda c, i: setattr(c.s, "k", float(i)), lambda c, x: x * c.s.k,
    subclass)  # fmt: skip
add("a_kept_bound_method", lambda c, i: c.d.__setitem__("k", float(i)),
    lambda c, x: x * c.get("k"), lambda d: (lambda s: S(d=s, get=s.get))({"k": 2.0}))  # fmt: skip
add("a_cycle", NOTHING, lambda c, x: x * next(c.i),
    lambda d: S(i=itertools.cycle((2.0, 3.0, 4.0))))  # fmt: skip
add("a_zip", NOTHING, lambda c, x: x * sum(next(c.i)), lambda d: S(i=zip(range(9), range(9))))
add("a_map", NOTHING, lambda c, x: x * next(c.i), lambda d: S(i=map(float, range(9))))
add("a_chain", NOTHING, lambda c, x: x * next(c.i), lambda d: S(i=itertools.chain(range(9))))
add("a_generator", NOTHING, lambda c, x: x * next(c.i), lambda d: S(i=(float(i) for i in range(9))))
add("a_random_state", NOTHING, lambda c, x: x * c.r.rand(),
    lambda d: S(r=np.random.RandomState(0)))  # fmt: skip
add("a_numpy_generator", NOTHING, lambda c, x: x * c.r.random(),
    lambda d: S(r=np.random.default_rng(0)))  # fmt: skip
add("pythons_random", lambda c, i: random.seed(i), lambda c, x: x * (c.k + 0 * random.random()))
add("an_array_of_objects", lambda c, i: c.a[0].append(i), lambda c, x: x * len(c.a[0]),
    lambda d: S(a=np.array([[1], None], object)))  # fmt: skip
add("an_array", lambda c, i: c.a.__setitem__(0, i), lambda c, x: x * float(c.a[0]),
    lambda d: S(a=np.ones(3)))  # fmt: skip
add("a_weak_dict", lambda c, i: c.w.__setitem__(c, float(i)), lambda c, x: x * len(c.w),
    lambda d: (lambda s: s)(WeakHolder()))  # fmt: skip
add("a_context_variable", lambda c, i: VARIABLE.set(float(i)),
    lambda c, x: x * VARIABLE.get(1.0), lambda d: (VARIABLE.set(1.0), S())[1])  # fmt: skip
add("a_copied_cpu_tensor", lambda c, i: c.t.fill_(i), lambda c, x: x * copy.deepcopy(c.t).to(x.device),
    lambda d: S(t=torch.ones(3)))  # fmt: skip
add("a_saved_tensor", lambda c, i: c.t.fill_(i), lambda c, x: (saved(c.t), x * 1),
    lambda d: S(t=torch.ones(3)))  # fmt: skip
add("a_clock", NOTHING, lambda c, x: x * (time.time() > 0))
VARIABLE = contextvars.ContextVar("VARIABLE")


class WeakHolder:
    def __init__(self):
        self.w = weakref.WeakKeyDictionary()


def saved(t):
    buffer = io.BytesIO()
    torch.save(t, buffer)
    return len(buffer.getvalue())


class Attributes:
    def __init__(self):
        self.values = {"k": 2.0}

    def __getattr__(self, name):
        return self.values[name]


class Held:
    def __init__(self):
        self.n = 0

    def counter(self):
        return self

    def __len__(self):
        return 3


def unreached(c, x):
    held = c.get()
    held["n"] = held["n"] + 1
    return x * held["n"]


def unreached_attribute(c, x):
    o = c.get()
    t = o.n
    o.n = t + 1
    return x * t


add("an_attribute_hook", lambda c, i: c.a.values.__setitem__("k", float(i)),
    lambda c, x: x * c.a.k, lambda d: S(a=Attributes()))  # fmt: skip
add(
    "a_dict_that_a_function_gives",
    NOTHING,
    unreached,
    lambda d: (lambda n: S(get=lambda: n))({"n": 0}),
)
add("an_object_that_a_function_gives", NOTHING, unreached_attribute,
    lambda d: (lambda n: S(get=lambda: n))(Held()))  # fmt: skip


class Patched(nn.Module):
    def forward(self, x):
        return torch.relu(x) + nn.functional.relu(x) + math.sqrt(4.0)


@program
def functions_that_are_patched(device, jit):
    f = jit(lambda x: torch.relu(x) + nn.functional.relu(x) + math.sqrt(4.0) + x.abs())
    old = torch.relu, nn.functional.relu, math.sqrt
    try:
        for index in range(6):
            if index == 1:
                torch.relu = lambda x: x * 2
            if index == 2:
                nn.functional.relu = lambda x: x * 3
            if index == 3:
                math.sqrt = lambda x: 7.0
            if index == 4:
                torch.Tensor.abs = lambda self: self * 5
            yield f(ones(device))
    finally:
        torch.relu, nn.functional.relu, math.sqrt = old
        vars(torch.Tensor).get("abs") and delattr(torch.Tensor, "abs")


class Doubled(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.relu else result


@program
def a_mode_that_is_entered_later(device, jit):
    f = jit(lambda x: torch.relu(x) + 1)
    for index in range(5):
        if index % 2:
            with Doubled():
                yield f(ones(device))
        else:
            yield f(ones(device))


# --- effects -------------------------------------------------------------------------------------------


def writes_array(c, x):
    c.a[0] += 1
    return x * 2


def writes_bytes(c, x):
    c.b.append(1)
    return x * 2


def warns(c, x):
    warnings.warn("careful")
    return x * 2


def leaves_dtype(c, x):
    torch.set_default_dtype(torch.float64)
    return x * 2


def leaves_grad_mode(c, x):
    torch.set_grad_enabled(False)
    return x * 2


add("writes_an_array", NOTHING, writes_array, lambda d: S(a=np.ones(3)))
add("writes_bytes", NOTHING, writes_bytes, lambda d: S(b=bytearray()))


def watched(name, function, make, look):
    def run(device, jit):
        c = make()
        f = jit(functools.partial(function, c))
        for _ in range(CALLS):
            yield f(ones(device)), look(c)

    PROGRAMS[name] = run


watched("puts_into_a_queue", lambda c, x: (c.put(1), x * 2)[1], queue.Queue, lambda c: c.qsize())
watched("puts_into_a_simple_queue", lambda c, x: (c.put(1), x * 2)[1], queue.SimpleQueue,
        lambda c: c.qsize())  # fmt: skip
watched("sets_an_event", lambda c, x: (c.set(), x * 2)[1], threading.Event,
        lambda c: (c.is_set(), c.clear())[0])  # fmt: skip
watched("writes_a_text", lambda c, x: (c.write("a"), x * 2)[1], io.StringIO, lambda c: c.getvalue())
watched("prints_into_a_text", lambda c, x: (print("a", file=c), x * 2)[1], io.StringIO,
        lambda c: c.getvalue())  # fmt: skip
watched("appends_to_a_list", lambda c, x: (c.append(1), x * 2)[1], list, len)
watched("counts", lambda c, x: (c.update("ab"), x * 2)[1], collections.Counter, dict)


@program
def warns_each_time(device, jit):
    f = jit(functools.partial(warns, None))
    for _ in range(4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            y = f(ones(device))
        yield y, [str(w.message) for w in caught if "careful" in str(w.message)]


@program
def leaves_modes_changed(device, jit):
    f, g = (jit(functools.partial(h, None)) for h in (leaves_dtype, leaves_grad_mode))
    old = torch.get_default_dtype()
    for _ in range(4):
        try:
            yield f(ones(device)), str(torch.get_default_dtype())
        finally:
            torch.set_default_dtype(old)
        try:
            yield g(ones(device)), torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(True)


@program
def a_thread_inside(device, jit):
    found = []

    def function(x):
        thread = threading.Thread(target=found.append, args=(1,))
        thread.start()
        thread.join()
        return x * 2

    f = jit(function)
    for _ in range(4):
        yield f(ones(device)), len(found)


@program
def a_cpu_draw_and_a_guard_that_fails(device, jit):
    c = S(k=torch.ones(()))

    @jit
    def f(x):
        noise = torch.rand(3)
        if c.k.item() > 2:
            return x * noise.to(x.device)
        return x + noise.to(x.device)

    torch.manual_seed(0)
    for index in range(6):
        c.k.fill_(index)
        yield f(ones(device))


@program
def vmap_and_grad_of_a_compiled_function(device, jit):
    f = jit(lambda x: (x * x).sum())
    x = ones(device, 2, 3)
    for _ in range(2):
        yield f(x[0]), torch.func.vmap(f)(x), torch.func.grad(f)(x[0])


@program
def lazy_modules(device, jit):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(2), nn.ReLU()).to(device)
    f = jit(lambda x: model(x))
    for _ in range(4):
        yield tuple(f(ones(device, 2, 3)).shape), type(model[0]).__name__


class Method:
    def __init__(self):
        self.k = 2.0


@program
def methods_of_objects_that_go(device, jit):
    class M:
        def __init__(self, k):
            self.k = k

    M.call = jit(lambda self, x: x * self.k)
    M.call.__set_name__(M, "call") if hasattr(M.call, "__set_name__") else None
    import gc

    for index in range(4):
        m = M(float(index))
        yield m.call(ones(device)), m.call(ones(device))
        ref = weakref.ref(m)
        del m
        gc.collect()
        yield ref() is None


# --- what changes at each call --------------------------------------------------------------------------


class Slots:
    __slots__ = ("k",)


def slots(d):
    s = Slots()
    s.k = 1.0
    return S(s=s)


def set_class(c, i):
    Config.k = float(i)


add("a_class_attribute_each_time", set_class, lambda c, x: x * Config.k,
    lambda d: (setattr(Config, "k", 0.5), S())[1])  # fmt: skip
add("a_slot_each_time", lambda c, i: setattr(c.s, "k", float(i)), lambda c, x: x * c.s.k, slots)
add("a_list_element_each_time", lambda c, i: c.l.__setitem__(0, float(i)),
    lambda c, x: x * c.l[0], lambda d: S(l=[0.5]))  # fmt: skip
add("a_cpu_scalar_each_time", lambda c, i: c.t.fill_(i), lambda c, x: x * c.t.item(),
    lambda d: S(t=torch.ones(())))  # fmt: skip
add("a_numpy_number_each_time", lambda c, i: setattr(c, "k", np.float64(i)), lambda c, x: x * c.k)


@program
def many_shapes(device, jit):
    f = jit(lambda x: x * 2)
    for _ in range(2):
        for n in range(1, 6):
            yield f(ones(device, n))
