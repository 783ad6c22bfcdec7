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
def an_attribute_changes_its_type(compile):
    s = Bag(k=1)
    f = compile(lambda x: (x * s.k, t(1, dtype=torch.int64) * s.k, x / s.k))
    for k in (1, 1.0, True, t(2), torch.tensor(2.5), 2, False, torch.tensor(2), 0.0, -0.0, 0.0):
        s.k = k
        yield f(t(1)), s
