"""Numbers that change, as arguments and attributes: each of their uses in a function of its own."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch.nn import functional as F

from tests.programs.writing import Bag, attempt, program, t

FLOATS = (0.1, 0.5, 0.3, 0.1, 0.7, float("nan"), float("inf"))
WHOLE = (0, 1, 2, 5, 3, 1, 4)
CLASSES = (int, float)


def _used(compile, numbers, *uses):
    for use in uses:
        f = compile(use)
        for number in numbers:
            yield attempt(f, t(1), number)


@program
def floats_are_computed_with(compile):
    yield from _used(
        compile,
        FLOATS,
        lambda x, k: x * math.exp(k),
        lambda x, k: {"result": x / (1 + k), "k": k},
        lambda x, k: x * k if k > 0.25 else x - k,
        lambda x, k: x * {0.5: 3.0}.get(k, k),
    )


@program
def floats_go_into_operators(compile):
    yield from _used(
        compile,
        FLOATS,
        lambda x, k: F.leaky_relu(x - 2, k),
        lambda x, k: torch.full_like(x, k).add_(x, alpha=k),
        lambda x, k: x.new_zeros(int(k * 10)) + k,
    )


@program
def classes_of_numbers_are_asked_for(compile):
    def matched(x, k):
        match k:
            case float():
                return x * k
            case _:
                return x

    def inner(x, k):
        def scaled():
            return x * k if issubclass(type(k), float) else x

        return scaled()

    yield from _used(
        compile,
        (0.5, 0.25, 1, 2, 0.125, True, 0.5),
        lambda x, k: x * k if isinstance(k, float) else x,
        lambda x, k: x * k if isinstance(k, CLASSES) else x,
        lambda x, k: x * k if type(k) in (float, str) else x,
        lambda x, k: x * k if k.__class__ in (int, str) else x,
        matched,
        inner,
    )


@program
def an_argument_is_kept_in_many_places(compile):
    s = Bag(k=0.0, log=[], known={})

    def step(x, k):
        s.k = s.known["k"] = k
        s.log.append(k)
        if k == 3:
            raise ValueError
        return x * k

    f = compile(step)
    for k in (0.5, 0.25, 0.125, 3, 0.75, True, 3.0, 0.5):
        yield attempt(f, t(1), k), s


@program
def a_float_attribute_is_computed_with(compile):
    s = Bag(k=0.1, kept=None)

    def halves(x):
        s.k *= 0.5
        return x * s.k

    def keeps_a_sum(x):
        s.kept = s.k + 1
        return x * s.kept

    def keeps_a_partial(x):
        s.kept = functools.partial(torch.mul, other=s.k)
        return s.kept(x)

    def fills(x):
        return torch.full_like(x, s.k).add_(x, alpha=s.k) * math.sqrt(s.k)

    for use in (halves, keeps_a_sum, keeps_a_partial, fills):
        f = compile(use)
        for k in (0.1, 0.3, 0.5, 0.25, 0.1, 1, 2.0):
            s.k = k
            yield f(t(1)), s, s.kept(t(1)) if callable(s.kept) else None


@program
def whole_numbers_are_computed_with(compile):
    yield from _used(
        compile,
        WHOLE,
        lambda x, i: x * (-i // 3 + i**2 - abs(2 - i) % 5 + 0.5),
        lambda x, i: x * (i / 4) if i < 4 else x,
        lambda x, i: x * (round(i / 3, 2) + math.sqrt(i) if i % 2 else i.bit_length()),
        lambda x, i: x * float(np.float64(2.0) * i) + float(np.arange(9)[i]),
        lambda x, i: x * 2 if i else x - 1,
    )


@program
def whole_numbers_go_into_operators(compile):
    def adds_in_place(x, i):
        y = x + 0
        z = y
        y += i
        return z

    yield from _used(
        compile,
        WHOLE,
        adds_in_place,
        lambda x, i: (x == i).float() + (i != x) + (x < i),
        lambda x, i: x * torch.tensor([i, i + 1, 2], device="jax") + torch.full_like(x, i),
    )


@program
def whole_numbers_are_sizes_and_places(compile):
    table = [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]

    def loops(x, i):
        for k in range(i):
            x = x + k
        return x

    yield from _used(
        compile,
        WHOLE,
        lambda x, i: x.new_ones(i + 1).sum() + torch.arange(i, device="jax").sum(),
        lambda x, i: x[i % 3] * table[i] + x[: i + 1].sum(),
        lambda x, i: x.view(1, 3).expand(2, 3).sum(i % 2),
        loops,
    )


@program
def whole_numbers_are_keys_texts_and_seeds(compile):
    def seeds(x, i):
        torch.manual_seed(100 + i)
        return x + torch.rand(3)[0].to("jax")

    yield from _used(
        compile,
        WHOLE,
        lambda x, i: x * {0: 3.0, 1: 4.0}.get(i, 5.0) * (2.0 if i in (1, 4) else 1.0),
        lambda x, i: x * len(f"{i:03d}" + str(i) + "a" * i) + hash(i),
        seeds,
    )


@program
def signs_of_zeros_are_asked_for(compile):
    f = compile(lambda x, k: x * math.copysign(1, k.real) + math.copysign(2, k.imag))
    for k in (0j, complex(0, -0.0), 0j, complex(-0.0, 0), complex(0, -0.0), 0.0, -0.0, 0.0):
        yield f(t(3), k)
