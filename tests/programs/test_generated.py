"""Random programs, by every executor.

``PROGRAMS`` is how many are drawn for an executor. The number of the first depends on
``TESTS_COMMIT`` (:mod:`tests.support.seeds`): each change draws others, and the same ones again. A
failure prints the smallest wrong program, which runs as it stands.
"""

from __future__ import annotations

import os

import pytest

from tests.programs.executors import EXECUTORS, STALE, Executor, plain
from tests.programs.generator import (
    CALLS,
    Node,
    draw,
    is_wrong,
    outcome,
    program_of,
    smaller,
    smallest,
)
from tests.programs.harness import Verdict, shown
from tests.support.seeds import first_number

QUICK = 8
CHUNK = 24  # programs of one test, which one process runs
PROGRAMS = int(os.environ.get("PROGRAMS", "72"))  # besides the quick ones
SEED = first_number(QUICK + PROGRAMS)
SMALL = 3  # of a test's wrong programs so many are made smaller, which takes a while


def run(executor: str, first: int, count: int) -> list[str]:
    """What is wrong among programs: the source of the first ones, the seeds of the others."""
    seeds = [seed for seed in range(first, first + count) if is_wrong(seed, executor)]
    return [smallest(s, executor) if s in seeds[:SMALL] else f"seed {s} is wrong" for s in seeds]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_few_drawn_programs(executor):
    wrong = run(executor, SEED, QUICK)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("chunk", range(-(-PROGRAMS // CHUNK)))
@pytest.mark.parametrize("executor", EXECUTORS)
def test_many_drawn_programs(executor, chunk):
    wrong = run(executor, SEED + QUICK + chunk * CHUNK, CHUNK)
    assert not wrong, "\n".join(wrong)


def test_a_seed_draws_the_same_program_again():
    assert draw(7).text() == draw(7).text() != draw(8).text()


def test_drawn_programs_run_to_their_end():
    for seed in range(10):
        assert len(shown(program_of(draw(seed).text()), Executor(plain))) == CALLS


def test_a_stale_executor_is_found_and_the_program_made_small():
    def stale_is_wrong(drawn):
        return outcome(drawn, STALE).verdict is Verdict.WRONG

    drawn = draw(2)
    assert stale_is_wrong(drawn)
    assert smaller(drawn, stale_is_wrong).body == ()  # the argument alone shows a frozen result


def test_a_statement_stays_if_the_program_is_wrong_for_its_sake():
    def is_there(drawn):
        return "n = 5.0" in drawn.text()

    drawn = draw(3)
    inner = Node("if a:", (Node("x = x + 1"), Node("n = 5.0")))
    small = smaller(drawn._replace(body=(*drawn.body, inner)), is_there)
    assert small.body == (Node("n = 5.0"),) and small.changes == ()
