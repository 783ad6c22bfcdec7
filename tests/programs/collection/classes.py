"""Classes: attributes, slots, descriptors, caches, metaclasses, methods that are replaced."""

from __future__ import annotations

import functools

import torch

from tests.programs.writing import program, t


@program
def a_class_attribute_changes(compile):
    class C:
        k = 1.0

        def go(self, x):
            return x * self.k

    c = C()
    f = compile(c.go)
    for k in range(8):
        yield f(t(1))
        C.k += 1
        if k == 5:
            c.k = 0.5


@program
def a_class_attribute_is_counted_inside(compile):
    class C:
        calls = 0

        @compile
        def go(self, x):
            C.calls += 1
            return x * C.calls

    one, other = C(), C()
    for k in range(8):
        yield (one if k % 2 else other).go(t(1)), C.calls


@program
def a_class_attribute_is_hidden_by_an_instance(compile):
    class C:
        n = 1

    c = C()

    def step(x):
        c.n += 1
        return x * c.n

    f = compile(step)
    for k in range(8):
        yield f(t(1)), C.n, vars(c)
        if k == 3:
            del c.n
        if k == 5:
            C.n = 50
            del c.n


@program
def a_method_is_replaced_in_its_class(compile):
    class C:
        def go(self, x):
            return x + 1

    c = C()
    f = compile(lambda x: c.go(x))
    for k in range(8):
        yield f(t(1))
        if k == 2:
            C.go = lambda self, x: x * 5
        if k == 5:
            C.go = torch.nn.functional.relu.__get__  # a bound wrapper that is no function
            C.go = staticmethod(lambda x: x - 1)


@program
def the_code_of_a_method_is_replaced(compile):
    class C:
        def go(self, x):
            return x + 1

        def other(self, x):
            return x * 7

    c = C()
    f = compile(lambda x: c.go(x))
    for k in range(8):
        yield f(t(1))
        if k == 3:
            C.go.__code__ = C.other.__code__


@program
def the_code_of_the_function_is_replaced(compile):
    def step(x):
        return x + 1

    f = compile(step)
    for k in range(8):
        yield f(t(1))
        if k == 3:
            step.__code__ = (lambda x: x * 4).__code__


@program
def slots_change(compile):
    class S:
        __slots__ = ("k", "w")

    s = S()
    s.k, s.w = 1.0, t(1)

    def step(x):
        s.w = s.w + x
        return s.w * s.k

    f = compile(step)
    for k in range(8):
        yield f(t(1)), s
        s.k += 1


@program
def a_slot_is_empty_at_first(compile):
    class S:
        __slots__ = ("k",)

    s = S()
    f = compile(lambda x: x * getattr(s, "k", 0.5))
    for k in range(8):
        yield f(t(1))
        if k == 2:
            s.k = 3.0
        if k == 5:
            del s.k


@program
def a_property_computes(compile):
    class P:
        def __init__(self):
            self._k = 1.0

        @property
        def k(self):
            return self._k * 2

        @k.setter
        def k(self, value):
            self._k = value + 1

    p = P()

    def step(x):
        p.k = p.k
        return x * p.k

    f = compile(step)
    for k in range(8):
        yield f(t(1)), p._k
        if k == 4:
            p._k = 0.5


@program
def a_property_reads_the_world(compile):
    world = {"k": 1.0}

    class P:
        @property
        def k(self):
            return world["k"]

    p = P()
    f = compile(lambda x: x * p.k)
    for k in range(8):
        yield f(t(1))
        world["k"] = float(k)


@program
def a_property_is_replaced(compile):
    class P:
        @property
        def k(self):
            return 2.0

    p = P()
    f = compile(lambda x: x * p.k)
    for k in range(8):
        yield f(t(1))
        if k == 3:
            P.k = property(lambda self: 9.0)
        if k == 5:
            P.k = 4.0


@program
def a_descriptor_counts(compile):
    class Counted:
        n = 0

        def __get__(self, owner, kind=None):
            self.n += 1
            return float(self.n)

        def __set__(self, owner, value):
            self.n = value

    class C:
        k = Counted()

    c = C()
    f = compile(lambda x: x * c.k)
    for k in range(8):
        yield f(t(1)), vars(C)["k"].n
        if k == 4:
            c.k = 0


@program
def a_descriptor_by_instance(compile):
    class Table:
        def __init__(self):
            self.values = {}

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, owner, kind=None):
            return self.values.get(id(owner), 1.0)

        def __set__(self, owner, value):
            self.values[id(owner)] = value

    class C:
        k = Table()

    c = C()
    f = compile(lambda x: x * c.k)
    for k in range(8):
        yield f(t(1))
        if k % 2:
            c.k = float(k)


@program
def a_cached_property_is_computed_once(compile):
    made = []

    class C:
        def __init__(self):
            self.base = 2.0

        @functools.cached_property
        def k(self):
            made.append(1)
            return self.base * 3

    c = C()
    f = compile(lambda x: x * c.k)
    for k in range(8):
        yield f(t(1)), len(made), "k" in vars(c)
        c.base += 1
        if k == 4:
            del c.k


@program
def a_cached_property_of_a_tensor(compile):
    class C:
        def __init__(self):
            self.w = t(1)

        @functools.cached_property
        def double(self):
            return self.w * 2

    c = C()
    f = compile(lambda x: x + c.double)
    for k in range(8):
        yield f(t(k)), vars(c)
        c.w = t(k)
        if k % 3 == 2:
            del c.double


@program
def functools_cache_keeps_results(compile):
    world = {"k": 1.0}

    @functools.cache
    def scale(n):
        return world["k"] * n

    f = compile(lambda x, n: x * scale(n))
    for k in range(9):
        yield f(t(1), k % 3)
        world["k"] += 1
        if k == 5:
            scale.cache_clear()


@program
def an_lru_cache_of_tensors(compile):
    @functools.lru_cache(maxsize=2)
    def table(n):
        return t(n) * 2

    f = compile(lambda x, n: x + table(n))
    for n in (1, 2, 1, 3, 2, 1, 1, 3):
        yield f(t(1), n), table.cache_info().hits


@program
def a_meta_class_answers(compile):
    class Meta(type):
        k = 1.0

        def __getattr__(cls, name):
            return cls.k if name == "scale" else 0.0

    class C(metaclass=Meta):
        pass

    f = compile(lambda x: x * C.scale)
    for k in range(8):
        yield f(t(1))
        Meta.k += 1


@program
def a_meta_class_that_counts_instances(compile):
    class Meta(type):
        made = 0

        def __call__(cls, *args):
            Meta.made += 1
            return super().__call__(*args)

    class C(metaclass=Meta):
        pass

    def step(x):
        C()
        return x * Meta.made

    f = compile(step)
    for _ in range(8):
        yield f(t(1)), Meta.made


@program
def instance_checks_of_its_own(compile):
    allowed = set()

    class Meta(type):
        def __instancecheck__(cls, value):
            return value in allowed

    class Named(metaclass=Meta):
        pass

    f = compile(lambda x, name: x * 2 if isinstance(name, Named) else x + 1)
    for k in range(8):
        yield f(t(1), "a")
        (allowed.add if k % 2 else allowed.discard)("a")
