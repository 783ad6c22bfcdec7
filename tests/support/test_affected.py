"""Check that a change selects its dependents, and everything if these are unknown."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.support import affected, seeds, selected
from tests.support.affected import Selection, select
from tests.support.imports import MODULES, ROOT


@pytest.fixture
def two_commits(monkeypatch):
    """A function that says what git answers: the age of the last whole run, and what changed."""

    def answer(age: int, *changed: str) -> None:
        answers = {"rev-list": str(age), "diff": "\n".join(changed)}
        monkeypatch.setattr(affected, "git", lambda command, *_: answers[command])

    return answer


def folders(selection: Selection) -> set[str]:
    return {path.split("/")[1] for path in selection.tests}


@pytest.mark.parametrize(
    "path",
    [
        "torch_jax/core/active.py",
        "torch_jax/memory/storage.py",
        "torch_jax/eager/kernel.py",
        "torch_jax/compiler/donation.py",
        "torch_jax/_private/pytorch.py",
        "torch_jax/config.py",
        "Makefile",
        "pyproject.toml",
        ".ci/run",
        "tests/conftest.py",
    ],
)
def test_the_lowest_floors_reach_everything(path):
    assert (ROOT / path).exists()
    assert select(["docs/jit.md", path]).everything


def test_the_upper_floors_reach_little():
    compat = select(["torch_jax/compat/install.py"])
    assert folders(compat) <= {"compat", "house", "patches"} and not compat.lowerings
    assert "tests/compat/test_torchax.py" in compat.tests
    assert folders(select(["torch_jax/distributed/programs.py"])) >= {"distributed", "compat"}
    assert folders(select(["torch_jax/capture/guards.py"])) >= {
        "capture",
        "programs",
        "interop",
    }
    assert folders(select(["torch_jax/dispatch/ladder.py"])) >= {"calls", "conformance", "eager"}


def test_what_tests_read_selects_them():
    assert "tests/whole/test_docs.py" in select(["docs/jit.md"]).tests
    assert "tests/whole/test_measured_pages.py" in select(["README.md"]).tests
    assert "tests/whole/test_benchmarks.py" in select(["benchmarks/gpt.py"]).tests
    assert select(["zzz/such.file"]).tests == ("tests/support/test_affected.py",)  # by this line
    assert not select([".ci/landed"]).everything  # it changes at each landing


def test_a_file_of_tests_selects_itself_and_a_helper_those_that_use_it():
    assert select(["tests/ops/test_pool.py"]).tests == ("tests/ops/test_pool.py",)
    assert "tests/ops/test_pool.py" in select(["tests/support/compare.py"]).tests
    assert folders(select(["tests/recorded/conftest.py"])) == {"recorded"}
    assert select(["tests/programs/collection/gone.py"]).tests == ()


def test_operators_reach_their_family():
    pool = select(["torch_jax/ops/pool.py"])
    assert folders(pool) == {"ops", "calls", "conformance"} and pool.families == ("pooling",)
    assert "tests/ops/test_pool.py" in pool.tests and "tests/ops/test_norm.py" not in pool.tests
    assert pool.lowerings == ("torch_jax.ops.pool",)
    assert len(select(["torch_jax/ops/registry.py"]).lowerings) > 40
    assert select(["torch_jax/ops/unary.py"]).families == ()  # all: none is its own


def test_all_modules_of_the_package_are_in_the_graph():
    assert affected.edges().keys() >= MODULES.keys()
    assert not affected.edges()["torch_jax"]


def test_commits_that_are_too_many_or_unknown_reach_everything(two_commits, monkeypatch):
    two_commits(affected.COMMITS_BETWEEN_WHOLE_RUNS, "docs/jit.md")
    assert not affected.since_landed().everything
    two_commits(affected.COMMITS_BETWEEN_WHOLE_RUNS + 1, "docs/jit.md")
    assert affected.since_landed().everything
    monkeypatch.undo()
    monkeypatch.setattr(affected, "landed", lambda: dict.fromkeys(("base", "whole"), "0" * 40))
    assert affected.since_landed().everything


def test_the_marker_names_two_commits():
    assert affected.landed().keys() == {"base", "whole"}
    assert all(len(commit) == 40 for commit in affected.landed().values())


def test_landing_moves_the_base_and_a_whole_run_the_other(two_commits, monkeypatch, tmp_path):
    file = tmp_path / "landed"
    file.write_text("base old\nwhole older\n")
    monkeypatch.setattr(seeds, "LANDED", file)
    for changed, whole in (("docs/jit.md", "older"), ("Makefile", "new")):
        two_commits(1, changed)
        answered = affected.git
        monkeypatch.setattr(
            affected,
            "git",
            lambda *a, answered=answered: "new" if a[0] == "rev-parse" else answered(*a),
        )
        affected.note_landed()
        assert affected.landed() == {"base": "new", "whole": whole}


# --- the plugin -----------------------------------------------------------------------------------


def item(path: str, *marks: str, **params: str) -> SimpleNamespace:
    """A test, as far as the plugin looks at it."""
    cases = {"callspec": SimpleNamespace(params=params)} if params else {}
    return SimpleNamespace(
        path=ROOT / path,
        nodeid=f"{path}::test_something{list(params.values())}",
        get_closest_marker=lambda name: name in marks or None,
        **cases,
    )


def test_quick_tests_run_and_slow_ones_that_are_selected(monkeypatch):
    monkeypatch.setenv("TORCH_JAX_TEST_XLA", "fast")
    selection = Selection(
        tests=("tests/ops/test_pool.py", "tests/calls/test_calls.py"), families=("pooling",)
    )
    chosen = {
        ("tests/ops/test_pool.py", "slow"): True,
        ("tests/ops/test_norm.py", "slow"): False,
        ("tests/ops/test_norm.py",): True,
        ("tests/conformance/test_operators.py",): False,
        ("torch_jax/ops/pool.py",): False,  # a doctest
    }
    for (path, *marks), expected in chosen.items():
        assert selected.is_chosen(item(path, *marks), selection) == expected, path
        assert selected.is_chosen(item(path, *marks), Selection(everything=True))
    for family, expected in (("pooling", True), ("norms", False)):
        call = item("tests/calls/test_calls.py", "slow", family=family)
        assert selected.is_chosen(call, selection) == expected
    monkeypatch.setenv("TORCH_JAX_TEST_XLA", "default")
    assert selected.is_chosen(item("tests/ops/test_pool.py"), selection)
    assert not selected.is_chosen(item("tests/ops/test_norm.py"), selection)


def test_a_change_that_reaches_everything_asks_a_third_of_the_cases_of_slow_tests(monkeypatch):
    monkeypatch.setenv("TORCH_JAX_TEST_XLA", "fast")
    slow = [item("tests/ops/test_pool.py", "slow", dtype=str(n)) for n in range(60)]
    asked = []
    for number in range(3):
        monkeypatch.setattr(seeds, "commit_number", lambda number=number: number)
        found = [one for one in slow if selected.is_chosen(one, Selection(everything=True))]
        assert 10 < len(found) < 30
        asked += found
    assert {id(one) for one in asked} == {id(one) for one in slow} and len(asked) == len(slow)
    quick = [item("tests/ops/test_pool.py", dtype=str(n)) for n in range(9)]
    drawn = [
        item("tests/calls/test_calls.py", "slow", "every_case", chunk=str(n)) for n in range(9)
    ]
    for one in (*quick, *drawn, item("tests/ops/test_pool.py", "slow")):
        assert selected.is_chosen(one, Selection(everything=True))


def test_a_selection_is_read_as_it_was_written():
    found = select(["torch_jax/ops/pool.py"])
    read = Selection(**json.loads(json.dumps(found._asdict())))
    assert {*read.tests} == {*found.tests} and read.why == found.why


def test_shuffled_tests_are_all_there_file_by_file():
    tests = [item(f"tests/{name}.py", str(i)) for name in "abc" for i in range(4)]
    order = selected.shuffled(tests, 3)
    assert {id(one) for one in order} == {id(one) for one in tests} and order != tests
    assert len([1 for a, b in zip(order, order[1:], strict=False) if a.path != b.path]) == 2
    assert list(map(id, selected.shuffled(tests, 3))) == list(map(id, order))


def test_commits_draw_other_numbers(monkeypatch):
    monkeypatch.setenv("TESTS_COMMIT", "7")
    seeds.commit_number.cache_clear()
    try:
        assert seeds.first_number(80) == 560
    finally:
        seeds.commit_number.cache_clear()
