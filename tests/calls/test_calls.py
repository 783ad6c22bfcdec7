"""Random calls of every family on the CPU and on device jax.

The quick test draws the same few calls always. ``CALLS`` is how many the slow one draws in all. The
number of their first depends on ``TESTS_COMMIT`` (:mod:`tests.support.seeds`): each change draws
others, and the same ones again.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.calls.call import T, call, make
from tests.calls.compare import Verdict, check, compare
from tests.calls.exceptions import exempt
from tests.calls.families import FAMILIES, draw
from tests.support.seeds import first_number

QUICK = 8
CHUNK = 100  # calls of one test, which one process runs
CALLS = int(os.environ.get("CALLS", len(FAMILIES) * 30))
OF_A_FAMILY = -(-CALLS // len(FAMILIES))
SEED = QUICK + first_number(OF_A_FAMILY)


def run(family: str, first: int, count: int) -> Counter[Verdict]:
    """Run calls; the test fails with a line for each that did."""
    verdicts: Counter[Verdict] = Counter()
    failures = []
    for number in range(first, first + count):
        drawn = draw(family, number)
        try:
            verdicts[compare(drawn)] += 1
        except Exception as error:
            if not exempt(drawn, error):
                text = " ".join(str(error).split())
                failures.append(f"{drawn!r}\n    {type(error).__name__}: {text[:400]}")
    if failures:
        lines = "\n".join(failures)
        pytest.fail(f"from tests.calls.repeat import *\n{lines}", pytrace=False)
    return verdicts


@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_calls(family):
    verdicts = run(family, 0, QUICK)
    assert verdicts[Verdict.AGREED] > QUICK / 2, verdicts


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("first", range(0, OF_A_FAMILY, CHUNK))
@pytest.mark.parametrize("family", FAMILIES)
def test_many_calls(family, first):
    run(family, SEED + first, min(CHUNK, OF_A_FAMILY - first))


def test_a_call_prints_the_line_that_repeats_it():
    drawn = call("F.linear", T((2, 3), grad=True), T((4, 3)), within="no_grad")
    text = "check('F.linear(a, b)', a=T((2, 3), grad=True), b=T((4, 3)), within='no_grad')"
    assert repr(drawn) == text
    assert eval(repr(drawn)) is Verdict.AGREED


def test_a_family_draws_the_same_call_again():
    for family in FAMILIES:
        assert draw(family, 7) == draw(family, 7) != draw(family, 8)


def test_a_wrong_result_fails():
    with pytest.raises(AssertionError):
        check("a + (1 if a.is_cpu else 2)", a=T((2,)))
    with pytest.raises(AssertionError, match="strides"):
        check("a.clone() if a.is_cpu else a.contiguous()", a=T((2, 3), layout="transposed"))
    with pytest.raises(AssertionError, match="must raise"):
        check("a.view(3) if a.is_cpu else a", a=T((2,)))


def test_tensors_are_as_their_form_says():
    assert make(T((2, 3), layout="sliced"), 0).stride() == (6, 2)
    assert make(T((2, 3), layout="offset"), 0).storage_offset() == 3
    assert make(T((2, 3), layout="expanded"), 0).stride() == (0, 1)
    assert make(T((2, 3), layout="permuted"), 0).stride() == (1, 2)
    assert make(T((2,), "complex64", layout="conj"), 0).is_conj()
    assert not make(T((3, 4), "bool", values="rows"), 0)[-1].any()
