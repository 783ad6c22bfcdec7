"""What the benchmarks are made of; none is run."""

from __future__ import annotations

import importlib
import json

import pytest

import torch_jax
from benchmarks import __main__, cases, timing


@pytest.mark.parametrize("name", __main__.NAMES)
def test_every_benchmark_can_be_run_by_name(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").run)


def test_contenders_alternate_after_a_few_calls_each():
    order: list[str] = []
    contenders = {name: lambda name=name: order.append(name) for name in "ab"}
    samples = timing.sample(contenders, calls=2, rounds=8)
    assert {name: len(times) for name, times in samples.items()} == {"a": 8, "b": 8}
    assert "".join(order[:6]) == "aaabbb"
    rounds = {"".join(order[at : at + 4]) for at in range(6, len(order), 4)}
    assert rounds == {"aabb", "bbaa"}  # in changing order


def test_spread_is_relative_to_the_median():
    assert timing.spread([1.0]) == 0.0
    assert timing.spread([9.0, 10.0, 10.0, 10.0, 11.0]) == 0.05


def test_ratios_are_kept_for_the_page(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("BENCH_RESULTS", str(tmp_path / "results"))
    timing.compare("A step", {"ours": [1.0, 2.0], "theirs": [2.0, 4.0]}, {"theirs": 0.9})
    timing.table("Operators", [("mm", 3.0, 2.0, 4.0)], "us")
    step, mm = map(json.loads, (tmp_path / "results").read_text().splitlines())
    assert (step["title"], step["ours"], step["theirs"]) == ("A step", "ours", "theirs")
    assert (step["ratio"], step["wanted"], step["spread"]) == (0.5, 0.9, 0.0)
    assert (mm["ours"], mm["theirs"], mm["ratio"]) == ("mm", "bare JAX", 1.5)


def test_ratios_are_of_the_first_contender_to_the_others(capsys):
    samples = {"ours": [0.002, 2.0, 0.003], "theirs": [0.004, 4.0, 0.004], "eager": [0.001] * 3}
    timing.compare("A step", samples, {"theirs": 0.9})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "A step"
    assert lines[4].split()[-2:] == ["0.50x", "0.90x"]
    assert lines[5].split()[-1] == "3.00x"


@pytest.mark.parametrize("compiled", [False, True])
def test_an_inference_is_waited_for(compiled):
    forward = cases.inference(cases.LINEAR, "jax", compiled)
    with torch_jax.lazy():
        forward()  # a value that has only been written down is one to wait for, too
    assert cases.inference(cases.LINEAR, "cpu")().shape == forward().shape
