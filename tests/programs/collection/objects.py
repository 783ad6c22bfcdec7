"""Objects: their class, their own methods, their hooks of attributes, the types of their values."""

from __future__ import annotations

import enum
import types

import numpy as np
import torch

from tests.programs.writing import Bag, attempt, program, t


@program
def the_class_of_an_object_is_set(compile):
    class A(Bag):
        def go(self, x):
            return x + 1

    class B(Bag):
        def go(self, x):
            return x * 5

    s = A()
    f = compile(lambda x: s.go(x))
    for k in range(7):
        yield f(t(k))
        s.__class__ = (A, B)[k % 2]


@program
def the_class_of_a_plain_object_is_set(compile):
    class A:
        def go(self, x):
            return x + 1

    class B:
        def go(self, x):
            return x * 5

    s = A()
    f = compile(lambda x: s.go(x))
    for k in range(7):
        yield f(t(k))
        s.__class__ = A if k < 5 else B


@program
def an_instance_gets_a_method_of_its_own(compile):
    class A(Bag):
        def go(self, x):
            return x + 1

    s = A()
    f = compile(lambda x: s.go(x))
    for k in range(8):
        yield f(t(k))
        if k == 2:
            s.go = lambda x: x * 3
        if k == 4:
            s.go = types.MethodType(lambda self, x: x - 2, s)
        if k == 6:
            del s.go


@program
def an_attribute_turns_into_none_and_back(compile):
    s = Bag(mask=None)
    f = compile(lambda x: x if s.mask is None else x * s.mask)
    for k in range(8):
        yield f(t(k))
        s.mask = None if k % 3 == 0 else t(k)


@program
def an_attribute_changes_its_type(compile):
    s = Bag(k=1)
    f = compile(lambda x: x * s.k)
    for value in (1, 1.0, True, t(2), torch.tensor(3.0), 2, False, -0.0):
        s.k = value
        yield f(t(1)), s


@program
def a_numpy_number_in_an_attribute(compile):
    s = Bag(k=2.0)
    f = compile(lambda x: x * s.k)
    for value in (np.float32(2), np.float32(3), np.float64(4), np.float64(5), np.int64(5), 5.0):
        s.k = value
        yield f(t(1)), s


@program
def an_enumeration_in_an_attribute(compile):
    class How(enum.Enum):
        ADD = 2.0
        MUL = 3.0

    s = Bag(how=How.ADD)
    f = compile(lambda x: x + s.how.value if s.how is How.ADD else x * s.how.value)
    for k in range(7):
        yield f(t(1))
        s.how = How.MUL if k % 3 else How.ADD


@program
def two_attributes_take_any_value(compile):
    s = Bag(a=1, b=[1])

    def weigh(value):
        if isinstance(value, list):
            return 7.5 + sum(value) + 16 * len(value)
        if isinstance(value, str):
            return 3.25 + len(value)
        if value is None:
            return 11.0
        return value + 64 if isinstance(value, bool) else value

    f = compile(lambda x: x * weigh(s.a) + weigh(s.b))
    values = (1, True, 0.5, -0.0, "", "twice", None, [], 2.0, [2, 0], float("nan"), [1], False, 0)
    for k, value in enumerate(values):
        setattr(s, "ab"[k % 2], value)
        yield f(t(1)), s


@program
def a_counter_becomes_a_tensor(compile):
    s = Bag(n=0)

    def step(x):
        s.n += 1
        return x * s.n

    f = compile(step)
    for k in range(8):
        before = s.n
        yield f(t(1)), s, s.n is before
        if k == 3:
            s.n = torch.zeros(()).to("jax")


@program
def true_stands_for_one(compile):
    s = Bag(k=1)
    f = compile(lambda x: x + 10 if s.k is True else x + 20 if type(s.k) is int else x)
    for value in (1, 1, True, 1, 1.0, True, 1):
        s.k = value
        yield f(t(1))


@program
def equal_lists_are_two_or_one(compile):
    s = Bag(a=[1.0], b=[1.0])
    f = compile(lambda x: x * 2 if s.a is s.b else x + 1)
    for k in range(7):
        yield f(t(3))
        s.b = s.a if k % 2 else [1.0]


@program
def minus_zero_stands_for_zero(compile):
    s = Bag(k=0.0)
    f = compile(lambda x: x / s.k)
    for value in (0.0, 0.0, -0.0, -0.0, 0.0, -0.0):
        s.k = value
        yield f(t(1))


@program
def nan_stays_and_goes(compile):
    s = Bag(k=float("nan"))
    f = compile(lambda x: x if s.k != s.k else x * s.k)
    for value in (float("nan"), 2.0, float("nan"), 3.0, float("inf"), 2.0):
        s.k = value
        yield f(t(1))


@program
def a_string_attribute_chooses(compile):
    s = Bag(mode="sum")
    f = compile(lambda x: {"sum": x.sum, "mean": x.mean, "max": x.max}[s.mode]())
    for mode in ("sum", "mean", "sum", "max", "mean", "sum"):
        s.mode = mode
        yield f(t(1))


@program
def attributes_deep_in_lists_of_objects(compile):
    s = Bag(layers=[Bag(k=1.0), Bag(k=2.0)])

    def step(x):
        for layer in s.layers:
            x = x * layer.k
        return x

    f = compile(step)
    for k in range(8):
        yield f(t(k))
        s.layers[k % 2].k += 1
        if k == 4:
            s.layers.append(Bag(k=-1.0))
        if k == 6:
            s.layers.reverse()


@program
def a_getattr_hook_counts(compile):
    class Counting:
        def __init__(self):
            self.n = 0

        def __getattr__(self, name):
            if name != "scale":
                raise AttributeError(name)
            self.n += 1
            return float(self.n)

    s = Counting()
    f = compile(lambda x: x * s.scale)
    for k in range(7):
        yield f(t(k)), s.n


@program
def a_getattribute_hook_reads_elsewhere(compile):
    table = {"k": 2.0}

    class Reads:
        def __getattribute__(self, name):
            return table[name] if name in table else object.__getattribute__(self, name)

    s = Reads()
    f = compile(lambda x: x * s.k)
    for k in range(7):
        yield f(t(k))
        table["k"] = float(k)


@program
def a_setattr_hook_logs(compile):
    log = []

    class Logs:
        def __setattr__(self, name, value):
            log.append(name)
            object.__setattr__(self, name, value)

    s = Logs()

    def step(x):
        s.last = x * 2
        return x + 1

    f = compile(step)
    for k in range(7):
        yield f(t(k)), list(log), s.last


@program
def a_delattr_hook_logs(compile):
    log = []

    class Logs(Bag):
        def __delattr__(self, name):
            log.append(name)
            object.__delattr__(self, name)

    s = Logs(a=1)

    def step(x):
        s.a = 1
        del s.a
        return x + 1

    f = compile(step)
    for k in range(7):
        yield f(t(k)), list(log)


@program
def an_attribute_that_raises_at_first(compile):
    class Late:
        ready = False

        @property
        def value(self):
            if not self.ready:
                raise RuntimeError("not yet")
            return 3.0

    s = Late()
    f = compile(lambda x: x * s.value)
    for k in range(7):
        yield attempt(f, t(k))
        s.ready = k >= 2


@program
def a_tensor_of_another_shape_moves_in(compile):
    s = Bag(w=t(1))
    f = compile(lambda x: (x * s.w).sum())
    for k in range(8):
        yield f(t(k))
        s.w = (t(1), t(2.0, 3.0, 4.0), t(1, 2), t(1, dtype=torch.int64))[k % 4][:1]


@program
def a_strided_tensor_moves_in(compile):
    base = torch.arange(6.0).to("jax")
    s = Bag(w=t(1))
    f = compile(lambda: s.w * 1 if s.w.is_contiguous() else s.w)
    for k in range(8):
        yield f(), f().stride()
        s.w = (base[::2], base[:3], base[3:], t(k))[k % 4]
