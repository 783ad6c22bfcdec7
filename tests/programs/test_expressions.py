"""Random expressions over special numbers: compiled programs give what the CPU gives.

XLA's algebra, its fusions and its rounding are not those of PyTorch's kernels, so the expressions
run in programs, each of many. ``EXPRESSIONS`` is how many the slow test draws. The number of the
first depends on ``TESTS_COMMIT`` (:mod:`tests.support.seeds`). A failure prints the smallest wrong
expression as a call of :func:`check`, which runs as it stands.
"""

from __future__ import annotations

import os
import warnings

import pytest
import torch

import torch_jax
from tests.programs.expressions import Case, draw, smaller
from tests.programs.rounding import differs, promises_zeros, runs_of
from tests.support.seeds import first_number

pytestmark = pytest.mark.xla_both

TOGETHER = 20  # expressions of one program
QUICK = 2 * TOGETHER
EXPRESSIONS = int(os.environ.get("EXPRESSIONS", "60"))
CHUNK = 200  # expressions of one test, which one process runs
SEED = first_number(QUICK + EXPRESSIONS)


def check(inputs: list[str], lines: list[str], grad: str = "") -> None:
    """Run an expression by itself; raises ``AssertionError`` where its program is wrong."""
    case = Case(tuple(inputs), tuple(lines), grad)
    words = fault(case, compiled([case])[0])
    assert not words, words


def compiled(cases: list[Case]) -> list[list[torch.Tensor]]:
    """Return the results of cases in one program."""

    @torch_jax.jit(pure=True)
    def run(given: list[dict[str, torch.Tensor]]) -> list[list[torch.Tensor]]:
        return [case.run(dict(one)) for case, one in zip(cases, given, strict=True)]

    given = [{name: x.to("jax") for name, x in case.given().items()} for case in cases]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [[one.cpu() for one in results] for results in run(given)]


def fault(case: Case, actual: list[torch.Tensor]) -> str:
    """Return how results differ from what the CPU may give, or nothing."""

    def run() -> list[torch.Tensor]:
        with torch.backends.mkldnn.flags(enabled=False):  # oneDNN's gelu of infinity is NaN
            return case.run(case.given())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = run()
    if len(actual) != len(expected):
        return f"{len(actual)} results, not {len(expected)}"
    if any("complex" in line for line in case.inputs) and "inf" in joining(case):
        return ""  # docs/differences.md: powers of complex numbers, and infinite parts
    if not _differences(case, actual, [expected, expected]):
        return ""
    return _differences(case, actual, runs_of(run, joining(case)))


def joining(case: Case) -> str:
    """Return the operators' text, with those of gradients."""
    return " grad ".join(case.lines) if case.grad else "\n".join(case.lines)


def _differences(case: Case, actual: list, runs: list[list[torch.Tensor]]) -> str:
    words = differs(actual[0], [run[0] for run in runs], promises_zeros(joining(case)))
    if words or len(actual) == 1:
        return words
    slopes = [run[1] for run in runs if len(run) > 1]
    finite = torch.isfinite(slopes[0])
    slope = torch.where(finite, actual[1], slopes[0])
    words = differs(slope, slopes, False)
    return f"gradient {words}" if words else ""


def wrong(first: int, count: int) -> list[str]:
    """Return the wrong ones among expressions, as text, as small as they are wrong."""
    found = []
    for start in range(first, first + count, TOGETHER):
        cases = [draw(seed) for seed in range(start, min(start + TOGETHER, first + count))]
        for case, actual in zip(cases, compiled(cases), strict=True):
            words = fault(case, actual)
            if words and (alone := fault(case, compiled([case])[0])):
                case = smaller(case, lambda one: fault(one, compiled([one])[0]))
                words = fault(case, compiled([case])[0]) or alone
            elif words:
                words = f"beside others, from seed {start}: {words}"
            found += [f"# {words}\n{case.text()}"] if words else []
    return found


def _assert_right(first: int, count: int) -> None:
    found = wrong(first, count)
    if found:
        head = "from tests.programs.test_expressions import check"
        pytest.fail("\n".join([head, *found]), pytrace=False)


def test_a_few_expressions():
    _assert_right(SEED, QUICK)


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("first", range(0, EXPRESSIONS, CHUNK))
def test_many_expressions(first):
    _assert_right(SEED + QUICK + first, min(CHUNK, EXPRESSIONS - first))


def test_a_seed_draws_the_same_expression_again():
    assert draw(7) == draw(7) != draw(8)
    assert eval(draw(7).text(), {"check": lambda *case: case})[1] == list(draw(7).lines)


def test_what_rounding_leaves_certain():
    """Faults that were found: none is within what the runs allow."""
    inputs = ["a = torch.tensor([inf, 3.0, 0.3], dtype=torch.float32)"]
    of = {
        "v0 = a * (a < 1)": [0.0, 0.0, 0.3],
        "v0 = a == a.amax()": [False, False, False],
        "v0 = a % 0.3": [float("nan"), 0.0, 0.0],
        "v0 = a + 1": [float("inf"), 4.00001, 1.3],
    }
    for line, results in of.items():
        case = Case(tuple(inputs), (line,))
        dtype = torch.bool if "==" in line else torch.float32
        assert fault(case, [torch.tensor(results, dtype=dtype)])
        check(inputs, [line])
