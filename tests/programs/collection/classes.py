"""Classes: attributes, slots, descriptors, metaclasses, dispatch by type, methods that are replaced."""

from __future__ import annotations

import abc
import dataclasses
import functools
import typing

import torch

from tests.programs.writing import Bag, program, t


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


@program
def an_abstract_class_gets_registered(compile):
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Square:
        pass

    s = Square()
    f = compile(lambda x: x * 2 if isinstance(s, Shape) else x + 1)
    for k in range(8):
        yield f(t(1))
        if k == 3:
            Shape.register(Square)


@program
def class_getitem_is_asked(compile):
    class Table:
        values = {"k": 1.0}

        def __class_getitem__(cls, key):
            return cls.values[key]

    f = compile(lambda x: x * Table["k"])
    for k in range(8):
        yield f(t(1))
        Table.values["k"] += 1


@program
def single_dispatch_learns_a_type(compile):
    @functools.singledispatch
    def go(value, x):
        return x + 1

    f = compile(lambda x, v: go(v, x))
    for k in range(8):
        yield f(t(1), 3 if k % 2 else "a")
        if k == 2:
            go.register(int, lambda value, x: x * value)
        if k == 4:
            go.register(str, lambda value, x: x - 5)


@program
def a_single_dispatch_method(compile):
    class C:
        @functools.singledispatchmethod
        def go(self, v, x):
            return x

        @go.register
        def _(self, v: int, x):
            return x * v

        @go.register
        def _(self, v: str, x):
            return x + len(v)

    c = C()
    f = compile(lambda v, x: c.go(v, x))
    for v in (1, "ab", 2.0, 3, True, "abc", None):
        yield f(v, t(1))


@program
def operators_of_its_own(compile):
    class Scaled:
        k = 1.0

        def __mul__(self, x):
            self.k += 1
            return x * self.k

        def __call__(self, x):
            return x + self.k

        def __bool__(self):
            return self.k > 3

        def __len__(self):
            return int(self.k)

    s = Scaled()
    f = compile(lambda x: (s * x, s(x), bool(s), len(s)))
    for _ in range(8):
        yield f(t(1)), s.k


@program
def a_class_made_inside(compile):
    s = Bag(k=1.0)

    def step(x):
        class Local:
            scale = s.k

            def go(self, x):
                return x * self.scale

        return Local().go(x)

    f = compile(step)
    for _ in range(8):
        yield f(t(1))
        s.k += 1


@program
def a_type_made_inside(compile):
    s = Bag(bases=())

    class A:
        k = 2.0

    def step(x):
        made = type("Made", s.bases, {"n": 1})
        return x * getattr(made, "k", 5.0)

    f = compile(step)
    for k in range(8):
        yield f(t(1))
        s.bases = (A,) if k % 2 else ()


@program
def subclasses_are_counted(compile):
    class Base:
        pass

    kept = []
    f = compile(lambda x: x * (1 + len(Base.__subclasses__())))
    for k in range(6):
        yield f(t(1))
        kept.append(type(f"C{k}", (Base,), {}))


@program
def a_base_class_is_exchanged(compile):
    class A:
        def go(self, x):
            return x + 1

    class B:
        def go(self, x):
            return x * 9

    class C(A):
        pass

    c = C()
    f = compile(lambda x: c.go(x))
    for k in range(8):
        yield f(t(1))
        C.__bases__ = (B,) if k % 3 == 1 else (A,)


@program
def super_is_called_through(compile):
    class A:
        k = 1.0

        def go(self, x):
            return x * self.k

    class B(A):
        def go(self, x):
            return super().go(x) + 1

    b = B()
    f = compile(b.go)
    for k in range(8):
        yield f(t(1))
        A.k += 1
        if k == 5:
            A.go = lambda self, x: x


@program
def init_subclass_registers(compile):
    class Base:
        known = []

        def __init_subclass__(cls, k, **kw):
            Base.known.append(k)

    f = compile(lambda x: x * sum(Base.known))
    for k in range(8):
        yield f(t(1))

        class Made(Base, k=float(k)):
            pass


@program
def new_gives_the_same_object(compile):
    class Single:
        it = None

        def __new__(cls):
            if cls.it is None:
                cls.it = super().__new__(cls)
                cls.it.n = 0
            return cls.it

    def step(x):
        s = Single()
        s.n += 1
        return x * s.n

    f = compile(step)
    for k in range(8):
        yield f(t(1)), Single.it.n
        if k == 4:
            Single.it = None


@program
def a_finalizer_counts(compile):
    freed = []

    class Thing:
        def __del__(self):
            freed.append(1)

    def step(x):
        Thing()
        return x * len(freed)

    f = compile(step)
    for _ in range(8):
        yield f(t(1)), len(freed)


@program
def typed_named_tuples(compile):
    class Pair(typing.NamedTuple):
        a: torch.Tensor
        k: float = 2.0

        def go(self):
            return self.a * self.k

    s = Bag(pair=Pair(t(1)))
    f = compile(lambda x: s.pair._replace(a=x + s.pair.a))
    for k in range(8):
        s.pair = f(t(k))
        yield s.pair, s.pair.go()
        if k == 4:
            s.pair = Pair(t(0), 7.0)


@program
def fields_of_dataclasses(compile):
    @dataclasses.dataclass
    class D:
        a: float = 1.0
        b: float = 2.0

    d = D()
    f = compile(
        lambda x: [x * v for v in dataclasses.asdict(d).values()] + [x * len(dataclasses.fields(d))]
    )
    for k in range(8):
        yield f(t(1))
        d.a += 1
        if k == 4:
            d.b = -1.0


@program
def a_dataclass_with_a_factory(compile):
    ids = iter(range(100))

    @dataclasses.dataclass
    class D:
        n: int = dataclasses.field(default_factory=lambda: next(ids))

    f = compile(lambda x: x * D().n)
    for _ in range(8):
        yield f(t(1))


@program
def a_method_compiled_for_each_object(compile):
    class C:
        def __init__(self, k):
            self.k, self.n = k, 0

        @compile
        def go(self, x):
            self.n += 1
            return x * self.k + self.n

    one, other = C(1.0), C(10.0)
    for k in range(10):
        c = (one, other)[k % 2]
        yield c.go(t(1)), c.n
        c.k += 1
        if k == 7:
            one = C(100.0)


@program
def static_and_class_methods(compile):
    class C:
        k = 1.0

        @staticmethod
        def plain(x):
            return x + C.k

        @classmethod
        def made(cls, x):
            return x * cls.k

    f = compile(lambda x: C.plain(x) + C.made(x))
    for k in range(8):
        yield f(t(1))
        C.k += 1
        if k == 5:
            C.plain = staticmethod(lambda x: x * 0)


@program
def partial_functions_that_change(compile):
    part = functools.partial(lambda x, k: x * k, k=2.0)
    f = compile(lambda x: part(x))
    for k in range(8):
        yield f(t(1))
        part.keywords["k"] = float(k)


@program
def a_partial_is_compiled(compile):
    f = compile(functools.partial(lambda k, x, b=0.0: x * k + b, 2.0, b=1.0))
    for k in range(8):
        yield f(t(k)) if k % 2 else f(t(k), b=float(k))


@program
def a_callable_object_is_compiled(compile):
    class Step:
        n = 0

        def __call__(self, x):
            self.n += 1
            return x * self.n

    s = Step()
    f = compile(s)
    for k in range(8):
        yield f(t(1)), s.n
        if k == 4:
            s.n = -3


@program
def a_wrapped_function_changes_what_it_wraps(compile):
    def inner(x):
        return x + 1

    @functools.wraps(inner)
    def outer(x):
        return outer.__wrapped__(x) * 2

    f = compile(lambda x: outer(x))
    for k in range(8):
        yield f(t(1))
        if k == 3:
            outer.__wrapped__ = lambda x: x * 100
