"""Types: registered, made inside, exchanged, dispatched on; what calls of objects do."""

from __future__ import annotations

import abc
import dataclasses
import functools
import typing

import torch

from tests.programs.writing import Bag, program, t


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
