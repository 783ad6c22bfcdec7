"""Programs of graphs, and their reasons: these name the operator, the line, the difference."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import torch_jax
from tests.support.lazily import counted
from tests.support.values import ones
from torch_jax.compiler import donation
from torch_jax.memory.storage import memory_of
from torch_jax.recorded import lazy
from torch_jax.recorded import program as recorded_program
from torch_jax.recorded.program import Listener


@given(st.lists(st.sampled_from("ab"), max_size=8), st.data())
def test_order_pairs_each_donated_array_with_its_heir(forms, data):
    results = list(range(len(forms)))
    heirs = data.draw(st.permutations(results))
    donated = [
        (forms[heir], data.draw(st.sampled_from([heir, None])))
        for heir in heirs[: data.draw(st.integers(0, len(heirs)))]
    ]
    order = donation.order(results, forms.__getitem__, donated)
    assert sorted(order) == results
    left = list(order)
    for form, heir in donated:  # as JAX does it: the first result of the form
        first = next(one for one in left if forms[one] == form)
        left.remove(first)
        assert heir in (first, None)


def step_of(optimizer: Any, layers: int) -> Any:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))).to("jax")
    made, x = optimizer(model.parameters()), ones(2, 4)

    def step():
        made.zero_grad()
        model(x).square().mean().backward()
        made.step()

    return step


@pytest.fixture
def programs(monkeypatch):
    """The programs that are compiled for recordings, lowered."""
    found = []
    original = recorded_program.Program.compile

    def compile_(self, from_run, given, report):
        found.append((self, self.lower(given).as_text()))
        return original(self, from_run, given, report)

    monkeypatch.setattr(recorded_program.Program, "compile", compile_)
    return found


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "one by one": lambda p: torch.optim.Adam(p, foreach=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_are_updated_in_their_own_memory(name, programs):
    step = step_of(OPTIMIZERS[name], layers=3)
    for _ in range(2):
        with torch_jax.lazy():
            step()
    program, text = programs[-1]
    arguments = text[text.index("@main(") : text.index(") -> (")]
    pairs = re.findall(r"%arg(\d+): [^%]*?tf.aliasing_output = (\d+)", arguments)
    assert len(pairs) == len(program.donated) > 0
    # the results that operators write in place of arrays are the first, in the order of these
    assert [int(output) for _, output in pairs] == list(range(len(pairs)))


class Numbers(Listener):
    """How many numbers each graph is given."""

    def __init__(self):
        self.counts = []

    def before(self, state, numbers, arrays):
        self.counts.append(len(numbers))


@pytest.mark.slow
def test_equal_updates_are_lowered_once_and_given_their_numbers_once(programs):
    found = []
    for layers in (4, 8):
        step, listener = step_of(torch.optim.AdamW, layers), Numbers()
        for _ in range(2):
            with lazy.observed(listener):
                step()
        text = programs[-1][1]
        arithmetic = re.findall(r"stablehlo\.(?:sqrt|divide|select|compare)\b", text)
        found.append((len(arithmetic), listener.counts[-1]))
    assert found[0] == found[1]


def normed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Two steps without parameters of their own, by one operator with a number each."""
    for epsilon in model.epsilons:
        x = (x + x).relu().add(epsilon)
    return x


def test_equal_numbers_of_one_operator_are_one_input(programs):
    model, x = nn.Module(), torch.tensor([-1.0, 1.0])
    runs = [(0.25, 0.25), (0.5, 0.5), (0.25, 0.5), (0.0, -0.0), (0.75, 0.75)]
    with counted() as did:
        for model.epsilons in runs:
            with torch_jax.lazy():
                found = normed(model, x.to("jax"))
            assert torch.equal(found.cpu(), normed(model, x))
    inputs = [text[text.index("@main(") :].partition("->")[0] for _, text in programs]
    assert [re.findall(r"tensor<(?:\dx)?f32>", one)[0] for one in inputs] == [
        "tensor<1xf32>",
        "tensor<2xf32>",
    ]
    assert [one.count("tensor<f32>") for one in inputs] == [1, 0]
    assert did.explanations[1].endswith("differ now that were equal in all calls of one operator")


@pytest.mark.slow
def test_lists_of_numbers_keep_what_each_position_has():
    lists = ([2.0] * 3, [2.0, 2.0, 3.0], [0.0, -0.0, 0.0], [2.0], [True, 1, 1.0], [1, 1, 1])
    for scalars in (*lists, *lists[::-1]):
        ours, theirs = ([torch.arange(1.0, 4.0, device=d) for _ in scalars] for d in ("jax", "cpu"))
        for tensors in (ours, theirs):
            torch._foreach_mul_(tensors, scalars)
            torch._foreach_addcdiv_(tensors, tensors, [t + 1 for t in tensors], scalars)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.cpu(), b) and torch.equal(a.cpu().signbit(), b.signbit())


# --- reasons --------------------------------------------------------------------------------------

GRAPH = re.compile(r"graph (\d+)")


def reasons(*runs: Any) -> list[str]:
    """What is said of each compilation, the numbers of graphs as ``#1``, ``#2`` …"""
    with torch_jax.lazy(), counted() as did:
        kept = []
        for run in runs:
            kept.append(run())
            torch_jax.sync()
    known = sorted({int(number) for why in did.explanations for number in GRAPH.findall(why)})
    return [
        GRAPH.sub(lambda found: f"graph #{known.index(int(found[1])) + 1}", why)
        for why in did.explanations
    ]


def line_of(text: str) -> str:
    lines, first = inspect.getsourcelines(work)
    (at,) = (n for n, line in enumerate(lines) if text in line)
    return f"test_programs.py:{first + at}"


def work(x: torch.Tensor, keepdim: bool = False, other: bool = False, more: int = 0) -> Any:
    x = x * 2
    if other:
        x = x.exp()
    x = x.sum(-1, keepdim=keepdim)
    for _ in range(more):
        x = x.sin()
    return x


OTHERS = {
    "another shape": (lambda: work(ones(8, 127)),
     "graph #2 (2 operators): as graph #1 up to aten.mul.Tensor at {x * 2}, "
     "whose argument is float32[8,127], was float32[8,128]"),
    "another dtype": (lambda: work(ones(8, 128, dtype=torch.float16)),
     "graph #2 (2 operators): as graph #1 up to aten.mul.Tensor at {x * 2}, "
     "whose argument is float16[8,128], was float32[8,128]"),
    "a static argument": (lambda: work(ones(8, 128), keepdim=True),
     "graph #2 (2 operators): as graph #1 up to aten.sum.dim_IntList at {x.sum}, "
     "which is given True, too"),
    "another operator": (lambda: work(ones(8, 128), other=True),
     "graph #2 (3 operators): as graph #1 up to aten.exp at {x.exp}, "
     "where aten.sum.dim_IntList at {x.sum} was called"),
    "more operators": (lambda: work(ones(8, 128), more=2),
     "graph #2 (4 operators): as graph #1, and on from aten.sin at {x.sin}"),
}  # fmt: skip


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("run, reason", OTHERS.values(), ids=OTHERS)
def test_another_graph(run, reason, runs):
    for text in ("x * 2", "x.exp", "x.sum", "x.sin"):
        reason = reason.replace(f"{{{text}}}", line_of(text))
    first = "graph #1 (2 operators): the first one"
    with torch_jax.config.temporarily("compiled_from_run", runs):
        times = runs + (runs > 2)  # what is new runs at once, and is not counted
        found = reasons(*[lambda: work(ones(8, 128))] * times, *[run] * times)
    assert found == [first, reason]


def test_fewer_operators():
    (_, second) = reasons(lambda: work(ones(), more=2), lambda: work(ones()))
    assert second == "graph #2 (2 operators): the beginning of graph #1"


def test_what_an_operator_was_to_be_given_when_its_check_ran_what_was_before_it():
    at, source = torch.tensor([0.0, 2.0]).to("jax"), torch.ones(2).to("jax")
    tables = {size: torch.zeros(size).to("jax") for size in (3, 4, 5)}
    runs = [
        lambda n=n: tables[n].scatter_add(0, at.long(), source) for n in tables for _ in range(4)
    ]
    found = reasons(*runs)
    (cast,) = (why for why in found if "aten.scatter_add" not in why)
    assert cast.endswith("(1 operator): the beginning of an earlier recording")
    assert len(found) == 1 + len(tables)


def test_starts_of_counting_and_factors_of_products_are_inputs():
    table, results = torch.randn(16, 3), []
    for one in (table.to("jax"), table):
        with torch_jax.lazy(), counted() as did:
            for n in range(6):
                at = torch.arange(n + 1, n + 4, device=one.device)
                when = torch.arange(n + 1, n + 7, 2, device=one.device, dtype=torch.float16)
                results.append(torch.addmm(one[at] * when, one[:3], one[3:6], alpha=n / 3))
                torch_jax.sync()
        assert did.compiles <= 2  # the second takes the starts as inputs
    for jax, cpu in zip(results[:6], results[6:], strict=True):
        torch.testing.assert_close(jax.cpu(), cpu)


def test_another_result_is_kept():
    kept: list[torch.Tensor] = []

    def run(keeps: bool) -> torch.Tensor:
        x = ones() * 2
        if keeps:
            kept.append(x)
        return x + 1

    first, second = reasons(lambda: run(False), lambda: run(True))
    assert first == "graph #1 (2 operators): the first one"
    assert second.startswith("graph #1 (2 operators): the result of aten.mul.Tensor at test_prog")
    assert second.endswith("can be reached now, and could not before")


def test_an_argument_that_is_used_elsewhere():
    x, kept = ones(), []

    def run(keeps: bool) -> None:
        nonlocal x
        if keeps:
            kept.append(x)
        x = x + 1

    *_, last = reasons(lambda: run(False), lambda: run(False), lambda: run(True))
    assert last.endswith("some of its arguments are used elsewhere, and must not be written over")
    assert kept[0].tolist() == [3, 3, 3] and x.tolist() == [4, 4, 4]


@pytest.mark.usefixtures("eager_by_xla")
def test_an_argument_that_was_used_elsewhere_at_first_is_written_over_later():
    x = torch.ones(3).to("jax")
    kept, run = x.detach().clone(), (lambda: x.add_(1).storage_offset())
    _, now = reasons(*[run] * 4)
    assert now.endswith("were used elsewhere, and can be written over now")
    place = memory_of(x).unsafe_buffer_pointer()
    assert not reasons(*[run] * 4)
    assert memory_of(x).unsafe_buffer_pointer() == place
    assert x.tolist() == [9, 9, 9] and kept.tolist() == [1, 1, 1]


def test_numbers_never_differ():
    x = ones()
    assert (
        len(reasons(*(lambda n=n: x * n + n / 3 for n in (2, 3, 4.5, 5.5)))) == 1
    )  # an int is a float


def test_reasons_are_logged(caplog):
    with caplog.at_level("INFO", logger="torch_jax"):
        (reason,) = reasons(lambda: work(ones(5)))
    (line,) = (r.getMessage() for r in caplog.records if "compiled graph" in r.getMessage())
    assert reason.partition(": ")[2] in line


@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1, "nesterov": True}, {"foreach": False}]
)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_warmup_that_begins_at_0_is_one_program(nothing_is_remembered, kind, options):
    """SGD's momentum is of zeros before its first step, as are Adam's moments."""
    options = {"momentum": 0.9, **options} if kind is torch.optim.SGD else {}
    layer, on_host = torch.nn.Linear(3, 2).to("jax"), torch.nn.Linear(3, 2)
    on_host.load_state_dict(layer.state_dict())
    optimizers = {one: kind(one.parameters(), **options) for one in (layer, on_host)}
    counts = []
    for step in range(4):
        for model, optimizer in optimizers.items():
            optimizer.param_groups[0]["lr"] = step / 30
            with torch_jax.lazy():
                optimizer.zero_grad()
                (
                    min(1, step / 3) * model(torch.ones(1, 3).to(model.weight.device)).sum()
                ).backward()
                optimizer.step()
        counts.append(torch_jax.metrics()["compiles"])
    assert counts[0] == counts[-1]
    torch.testing.assert_close(layer.weight.cpu(), on_host.weight)
