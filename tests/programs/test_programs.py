"""The programs of the collection by every executor: their output is that of plain calls."""

from __future__ import annotations

import os

import pytest

from tests.programs.executors import EXECUTORS, STALE, Executor, plain
from tests.programs.harness import Verdict, judge, run, shown
from tests.programs.writing import PROGRAMS, Bag, t

EVERY = 16  # of so many programs one is quick
NAMES = [
    pytest.param(name, marks=() if i % EVERY == 0 else pytest.mark.slow)
    for i, name in enumerate(sorted(PROGRAMS))
]
# Of so many programs an executor is asked one; ``make programs`` asks all.
SHARE = {"jit": 1, "jit, compiled later": 2, "lazy": 2, "fused": 2}
CASES = [
    pytest.param(executor, *param.values, marks=param.marks, id=f"{executor}-{param.values[0]}")
    for executor in EXECUTORS
    for i, param in enumerate(NAMES)
    if i % SHARE[executor] == 0 or "PROGRAMS" in os.environ
]


@pytest.mark.every_case
@pytest.mark.parametrize(("executor", "name"), CASES)
def test_an_executor_shows_what_plain_calls_show(executor, name):
    verdict, words = run(name, executor)
    assert verdict is Verdict.EQUAL, words


@pytest.mark.parametrize("name", [p for p in NAMES if not p.marks])
def test_plain_calls_show_the_same_each_time(name):
    assert run(name, "plain").verdict is Verdict.EQUAL


# --- what the harness must notice -----------------------------------------------------------------


def _counts(compile):
    s = Bag(w=t(1), n=0)

    def step(x):
        s.n += 1
        s.w.add_(x)
        return s.w * s.n

    f = compile(step)
    for k in range(6):
        yield f(t(k)), s


def _judged(change) -> Verdict:
    """The verdict on a program that differs by a change of what it yields, at its fourth yield."""

    def other(compile):
        for k, value in enumerate(_counts(compile)):
            yield change(*value) if k == 3 else value

    return judge(other, shown(_counts, Executor(plain)), Executor(plain)).verdict


def test_a_stale_result_is_wrong():
    assert judge(_counts, shown(_counts, Executor(plain)), STALE).verdict is (Verdict.WRONG)


def test_what_is_equal_is_equal():
    assert _judged(lambda y, s: (y, s)) is Verdict.EQUAL


@pytest.mark.parametrize(
    "change",
    [
        lambda y, s: (y + 1, s),
        lambda y, s: (y.double(), s),
        lambda y, s: (y.requires_grad_(), s),
        lambda y, s: (y.view(1, 3), s),
        lambda y, s: (y[:], s),
        lambda y, s: (s.w, s),
        lambda y, s: (y.cpu(), s),
        lambda y, s: (y, Bag(w=s.w, n=float(s.n))),
        lambda y, s: (y, Bag(n=s.n, w=s.w)),
        lambda y, s: (y, Bag(w=s.w, n=s.n, more=None)),
        lambda y, s: [y, s],
        lambda y, s: (y,),
    ],
)
def test_any_difference_is_wrong(change):
    assert _judged(change) is Verdict.WRONG


def test_version_counters_are_told_apart():
    assert _judged(lambda y, s: (y.add_(0), s)) is Verdict.VERSION


def test_signs_of_zero_and_types_of_numbers_count():
    def of(value):
        def program(compile):
            yield value
            yield value

        return program

    def verdict(one, other):
        return judge(of(one), shown(of(other), Executor(plain)), Executor(plain)).verdict

    nan = float("nan")
    assert verdict(nan, nan) is Verdict.EQUAL and verdict(t(nan), t(nan)) is Verdict.EQUAL
    assert verdict(1.0, 1.0000001) is Verdict.EQUAL
    for one, other in ((0.0, -0.0), (1, True), (1, 1.0), (1.0, 1.001), (t(0.0), t(-0.0))):
        assert verdict(one, other) is Verdict.WRONG, (one, other)


def test_a_program_that_raises_or_hangs_is_wrong(monkeypatch):
    def raises(function):
        def call(*args):
            raise ValueError("no")

        return call

    def hangs(function):
        def call(*args):
            while True:
                pass

        return call

    monkeypatch.setattr("tests.programs.harness.SECONDS", 0.2)
    expected = shown(_counts, Executor(plain))
    for fault in (raises, hangs):
        assert judge(_counts, expected, Executor(fault)).verdict is Verdict.WRONG


@pytest.mark.slow
def test_every_program_notices_a_stale_result():
    """A program that even a frozen result passes would show nothing."""
    blind = []
    for name, program in PROGRAMS.items():
        expected = shown(program, Executor(plain))
        if judge(program, expected, STALE).verdict is Verdict.EQUAL:
            blind.append(name)
    assert blind == []
