"""A run of each week covers some dtypes, and targets count those alone."""

from __future__ import annotations

import doctest

from tests.conformance import report, samples
from tests.conformance.report import Count


def test_a_week_asks_for_three_dtypes_and_seven_weeks_for_all():
    for entry in samples.entries(commit=""):
        supported = samples.dtypes(entry)
        weeks = [samples.due(entry, str(week)) for week in range(2968, 2975)]
        assert {dtype for due in weeks for dtype in due} == set(supported)
        assert all(set(due) >= set(samples.ALWAYS) & set(supported) for due in weeks)
        assert all(bool(due) is bool(supported) for due in weeks)
        assert all(len(due) <= len(samples.ALWAYS) + samples.CHANGING for due in weeks)
        assert samples.due(entry, "") == supported


def test_each_entry_is_interpreted_in_one_week_and_compiled_in_the_other():
    for week in ("2968", "2969"):
        halves = [{e.full_name for e in samples.in_turn(turn, week)} for turn in (0, 1)]
        assert halves[0].isdisjoint(halves[1])
        assert halves[0] | halves[1] == {e.full_name for e in samples.entries()}
    assert samples.in_turn(0, "2968") == samples.in_turn(1, "2969")
    assert samples.in_turn(0, "") == samples.in_turn(1, "") == samples.entries()


def test_different_entries_begin_with_different_dtypes():
    asked = [dtype for entry in samples.entries(commit="") for dtype in samples.due(entry, "2968")]
    assert all(asked.count(dtype) > 40 for dtype in samples.DTYPES)


def test_a_target_is_missed_by_more_than_it_lets_fail():
    rows = {"views": Count(198, 200, 0, 0), "backward": Count(97, 100, 0, 0)}
    assert report.missed(rows) == ["backward"]


def test_the_table_is_as_its_example_shows():
    found = doctest.testmod(report)
    assert found.attempted and not found.failed
