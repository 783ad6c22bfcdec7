"""The parts of the benchmarks; none is run."""

from __future__ import annotations

import importlib
import json

import pytest
import torch

import torch_jax
from benchmarks import __main__, cases, machine, modes, timing
from benchmarks.timing import Timed
from torch_jax.graphs.executable import Executable


@pytest.mark.parametrize("name", __main__.NAMES)
def test_every_benchmark_can_be_run_by_name(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").run)


def test_contenders_alternate_after_a_few_calls_each(monkeypatch):
    monkeypatch.setattr(timing, "SECONDS_UNTIL_THREADS_SLEEP", 0.0)
    order: list[str] = []
    contenders = {name: lambda name=name: order.append(name) for name in "ab"}
    samples = timing.sample(contenders, calls=2, rounds=8)
    assert {name: len(timed.values) for name, timed in samples.items()} == {"a": 8, "b": 8}
    assert "".join(order[:8]) == "aaaabbbb"
    rounds = {"".join(order[at : at + 4]) for at in range(8, len(order), 4)}
    assert rounds == {"aabb", "bbaa"}  # in changing order


def test_spread_is_relative_to_the_median():
    assert timing.spread([1.0]) == 0.0
    assert timing.spread([9.0, 10.0, 10.0, 10.0, 11.0]) == 0.05


def test_no_round_begins_after_the_time_is_over():
    samples = timing.sample({"a": int}, calls=1, rounds=100, seconds=0.0)
    assert len(samples["a"].values) == timing.LEAST_ROUNDS


def test_ratios_are_kept_for_the_page(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("BENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(timing, "ROWS", [])
    samples = {"ours": Timed([1.0, 2.0], "pure"), "theirs": Timed([2.0, 4.0], "eager")}
    timing.compare("A step", samples, {"theirs": 0.9})
    assert "pure" in capsys.readouterr().out
    __main__.keep("jit", {"load": 0.0})
    (row,) = map(json.loads, (tmp_path / "results").read_text().splitlines())
    assert (row["title"], row["ours"], row["theirs"]) == ("A step", "ours", "theirs")
    assert (row["ratio"], row["wanted"], row["spread"]) == (0.5, 0.9, 0.0)
    assert row["mode"] == "pure / eager"
    assert (row["benchmark"], row["conditions"]) == ("jit", {"load": 0.0})


def test_runs_of_processes_are_put_together():
    assert timing.together([[[1.0], "eager"], [[2.0], "eager"]]) == Timed([1.0, 2.0], "eager")


def test_other_processes_are_counted_without_this_one(monkeypatch):
    monkeypatch.setattr(machine.time, "sleep", lambda seconds: None)
    for ready, others in ((4, 3), (1, 0), (0, 0)):
        monkeypatch.setattr(machine, "_ready_tasks", lambda ready=ready: ready)
        assert machine.ready_tasks_of_others() == others
    found = machine.conditions()
    assert found["cores"] > 0 and f"{found['cores']} cores" in found["machine"]


def _in(block, call):
    def run():
        with block():
            return call()

    return run


def test_the_mode_is_seen():
    x, cpu = torch.ones(3, device="jax"), torch.ones(3)
    new, old = (torch_jax.jit(lambda x: (x + 1).relu(), pure=True) for _ in range(2))
    looks = torch_jax.jit(lambda x: x + x.sum().item())
    calls = {
        "recorded": lambda: looks(x),
        "pure": lambda: old(x),
        "eager": lambda: (x + 1).relu(),
        "lazy": _in(torch_jax.lazy, lambda: (x + 1).relu().tolist()),
        "fused": _in(torch_jax.fused, lambda: (x + 1).relu().tolist()),
        "": lambda: (cpu + 1).relu(),
    }
    assert {modes.settle(call, 0.0): name for name, call in calls.items()} == {n: n for n in calls}
    assert modes.mode(lambda: new(x)) == "recorded"  # the call that is observed


def test_a_mode_that_changes_is_said():
    assert modes.after("eager", lambda: torch.ones(3, device="jax") + 1) == "eager"
    assert modes.after("pure", lambda: torch.ones(3, device="jax") + 1) == "pure, then eager"


def test_the_mode_of_a_graph_is_seen():
    x = torch.ones(3, device="jax")
    graph = torch.fx.symbolic_trace(lambda x: [torch.ops.aten.neg.default(x)])
    for node in graph.graph.nodes:
        node.meta["val"] = x
    compiled = Executable(graph, "graph")
    assert modes.mode(lambda: compiled([x])) == "graph"


def test_ratios_are_of_the_first_contender_to_the_others(capsys):
    times = {"ours": [0.002, 2.0, 0.003], "theirs": [0.004, 4.0, 0.004], "eager": [0.001] * 3}
    samples = {name: Timed(values) for name, values in times.items()}
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
