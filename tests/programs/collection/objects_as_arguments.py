"""Objects as arguments: data classes, enumerations, functions, arrays, containers of them."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import fractions

import numpy as np
import torch

from tests.programs.writing import CALLS, Bag, program, t


@program
def dataclasses_that_compare_equal_and_differ(compile):
    @dataclasses.dataclass
    class Config:
        n: int
        scale: float = dataclasses.field(default=1.0, compare=False)

    f = compile(lambda x, c: x * c.scale + c.n)
    for k in range(7):
        yield f(t(k), Config(1, scale=float(k)))


@program
def frozen_dataclasses_that_hash_alike(compile):
    @dataclasses.dataclass(frozen=True)
    class Config:
        n: int
        scale: float = dataclasses.field(default=1.0, compare=False, hash=False)

    f = compile(lambda x, c: x * c.scale + c.n)
    for k in range(7):
        yield f(t(k), Config(k % 2, scale=float(k)))


@program
def dataclasses_replaced(compile):
    @dataclasses.dataclass
    class State:
        w: torch.Tensor
        k: float

    f = compile(lambda s: dataclasses.replace(s, w=s.w * s.k, k=s.k + 1))
    s = State(t(1), 2.0)
    for _ in range(6):
        s = f(s)
        yield s


@program
def a_dataclass_is_changed_inside(compile):
    @dataclasses.dataclass
    class State:
        w: torch.Tensor
        n: int = 0

    def step(s, x):
        s.n += 1
        s.w = s.w + x
        return s.w * s.n

    f, s = compile(step), State(t(1))
    for k in range(8):
        yield f(s, t(k)), s
        if k == 4:
            s = State(t(0), 10)


@program
def an_equality_of_its_own(compile):
    class Always:
        def __init__(self, k):
            self.k = k

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

    f = compile(lambda x, a: x * a.k)
    for k in range(7):
        yield f(t(1), Always(float(k)))


@program
def decimals_of_other_exponents(compile):
    f = compile(lambda x, d: (x * float(d), str(d)))
    for d in ("1.0", "1.00", "1", "2", "2.0", "1.000"):
        yield f(t(1), decimal.Decimal(d))


@program
def fractions_and_numbers(compile):
    f = compile(lambda x, d: (x * float(d), type(d).__name__))
    for d in (fractions.Fraction(1), 1, 1.0, fractions.Fraction(1, 2), 0.5, fractions.Fraction(1)):
        yield f(t(1), d)


@program
def enumerations(compile):
    class How(enum.Enum):
        ADD = 1
        MUL = 2

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2

    f = compile(lambda x, how: x + 2 if how is How.ADD or how is Level.LOW else x * 2)
    for how in (How.ADD, How.MUL, Level.LOW, 1, Level.HIGH, How.ADD, 1):
        yield f(t(3), how)


@program
def flags(compile):
    class What(enum.Flag):
        A = 1
        B = 2

    f = compile(lambda x, w: x + (10 if What.A in w else 0) + (100 if What.B in w else 0))
    for w in (What.A, What.B, What.A | What.B, What(0), What.A, What.B):
        yield f(t(3), w)


@program
def objects_as_arguments(compile):
    f = compile(lambda x, o: x * o.k)
    o = Bag(k=1.0)
    for k in range(8):
        yield f(t(1), o)
        o.k += 1
        if k % 3 == 2:
            o = Bag(k=0.5)


@program
def an_object_argument_keeps_a_tensor(compile):
    def step(o, x):
        o.last, o.before = x * 2, o.last
        return x + (0 if o.before is None else o.before)

    f, o = compile(step), Bag(last=None)
    for k in range(7):
        yield f(o, t(k)), o
        if k == 4:
            o = Bag(last=t(50))


@program
def functions_as_arguments(compile):
    f = compile(lambda x, g: g(x))
    double = lambda x: x * 2
    for g in (torch.sin, torch.cos, double, torch.sin, lambda x: x - 1, double, lambda x: x + 5):
        yield f(t(1), g)


@program
def closures_of_one_code_as_arguments(compile):
    def scaled(k):
        return lambda x: x * k

    f = compile(lambda x, g: g(x))
    for k in range(7):
        yield f(t(1), scaled(float(k)))


@program
def types_as_arguments(compile):
    f = compile(lambda x, dtype, kind: (x.to(dtype), kind(3)))
    for dtype in (
        torch.float32,
        torch.int64,
        torch.float32,
        torch.float16,
        torch.int64,
        torch.bool,
    ):
        yield f(t(1), dtype, float if dtype.is_floating_point else int)


@program
def ranges_and_slices(compile):
    f = compile(lambda x, part, numbers: (x[part], sum(numbers)))
    for k in range(7):
        yield f(t(1), slice(k % 3, None), range(k % 4))


@program
def tuples_of_numbers_and_tensors(compile):
    def step(pair):
        (a, k), rest = pair
        return a * k + rest["b"], pair

    f = compile(step)
    for k in range(7):
        yield f(((t(k), float(k % 3)), {"b": t(1)}))


@program
def arrays_as_arguments(compile):
    f = compile(lambda x, a: x * float(a[0]) + float(a.sum()))
    a = np.ones(2)
    for k in range(7):
        yield f(t(1), a)
        a[0] = k
        if k == 4:
            a = np.zeros(2)


@program
def an_array_argument_is_written(compile):
    def step(x, a):
        a += 1
        return x * float(a[0])

    f, a = compile(step), np.zeros(2)
    for _ in range(7):
        yield f(t(1), a), a


@program
def a_generator_as_argument(compile):
    f = compile(lambda xs: sum(xs))
    for k in range(6):
        yield f(t(j) for j in range(1 + k % 3))


@program
def cpu_tensors_as_arguments(compile):
    f = compile(lambda x, c: (x * c, c + 1))
    for k in range(7):
        yield f(t(1), torch.tensor(float(k)))[0]


@program
def an_empty_tensor_as_argument(compile):
    f = compile(lambda x: (x.sum(), x * 2, x.numel()))
    for k in (3, 0, 2, 0, 3, 1, 0):
        yield f(torch.arange(float(k)).to("jax"))


@program
def seventeen_shapes_in_a_cycle(compile):
    f = compile(lambda x: x * 2)
    for k in list(range(1, 18)) + [1, 2, 17]:
        yield f(torch.arange(float(k)).to("jax"))


@program
def an_argument_is_resized_between(compile):
    f = compile(lambda x: x.sum())
    x = t(1)
    for k in range(CALLS):
        yield f(x), x.shape
        x = torch.cat([x.cpu(), torch.ones(1)]).to("jax") if k % 2 else x.cpu()[:2].to("jax")
