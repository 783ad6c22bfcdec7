"""Why a graph was compiled: the reason names the operator, the line, and what differs."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch

import torch_jax
from tests.support.lazily import counted
from torch_jax.memory.storage import memory_of

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


def jax(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape).to(dtype).to("jax")


def line_of(function: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    (at,) = (n for n, line in enumerate(lines) if text in line)
    return f"test_explained.py:{first + at}"


def work(x: torch.Tensor, keepdim: bool = False, other: bool = False, more: int = 0) -> Any:
    x = x * 2
    if other:
        x = x.exp()
    x = x.sum(-1, keepdim=keepdim)
    for _ in range(more):
        x = x.sin()
    return x


FIRST = "graph #1 (2 operators): the first one"
CASES = [
    ("another shape", lambda: work(jax(8, 127)),
     "graph #2 (2 operators): as graph #1 up to aten.mul.Tensor at {x * 2}, "
     "whose argument is float32[8,127], was float32[8,128]"),
    ("another dtype", lambda: work(jax(8, 128, dtype=torch.float16)),
     "graph #2 (2 operators): as graph #1 up to aten.mul.Tensor at {x * 2}, "
     "whose argument is float16[8,128], was float32[8,128]"),
    ("a static argument", lambda: work(jax(8, 128), keepdim=True),
     "graph #2 (2 operators): as graph #1 up to aten.sum.dim_IntList at {x.sum}, "
     "which is given True, too"),
    ("another operator", lambda: work(jax(8, 128), other=True),
     "graph #2 (3 operators): as graph #1 up to aten.exp at {x.exp}, "
     "where aten.sum.dim_IntList at {x.sum} was called"),
    ("more operators", lambda: work(jax(8, 128), more=2),
     "graph #2 (4 operators): as graph #1, and on from aten.sin at {x.sin}"),
]  # fmt: skip


@pytest.mark.parametrize(("run", "reason"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_reasons(run, reason):
    for text in ("x * 2", "x.exp", "x.sum", "x.sin"):
        reason = reason.replace(f"{{{text}}}", line_of(work, text))
    assert reasons(lambda: work(jax(8, 128)), run) == [FIRST, reason]


def test_fewer_operators():
    (_, second) = reasons(lambda: work(jax(3), more=2), lambda: work(jax(3)))
    assert second == "graph #2 (2 operators): the beginning of graph #1"


def test_another_result_is_kept():
    kept: list[torch.Tensor] = []

    def run(keeps: bool) -> torch.Tensor:
        x = jax(3) * 2
        if keeps:
            kept.append(x)
        return x + 1

    first, second = reasons(lambda: run(False), lambda: run(True))
    assert first == "graph #1 (2 operators): the first one"
    assert second.startswith("graph #1 (2 operators): the result of aten.mul.Tensor at test_expl")
    assert second.endswith("can be reached now, and could not before")


def test_an_argument_that_is_used_elsewhere():
    x = jax(3)
    kept = []

    def run(keeps: bool) -> None:
        nonlocal x
        if keeps:
            kept.append(x)
        x = x + 1

    whys = reasons(*(lambda: run(False) for _ in range(2)), lambda: run(True))
    assert whys[-1].endswith(
        "some of its arguments are used elsewhere, and must not be written over"
    )
    assert kept[0].tolist() == [3, 3, 3] and x.tolist() == [4, 4, 4]


def test_an_argument_that_was_used_elsewhere_at_first_is_written_over_later():
    x = jax(3)
    kept = [x.detach().clone()]

    def run() -> None:
        x.add_(1)

    _, now = reasons(*[run] * 4)
    assert now.endswith("were used elsewhere, and can be written over now")
    place = memory_of(x).unsafe_buffer_pointer()
    assert not reasons(*[run] * 4)
    assert memory_of(x).unsafe_buffer_pointer() == place
    assert x.tolist() == [9, 9, 9] and kept[0].tolist() == [1, 1, 1]


def test_numbers_never_differ():
    x = jax(3)
    assert len(reasons(*(lambda n=n: x * n + n / 3 for n in (2, 3, 4.5, 5.5)))) == 2  # int, float


def test_reasons_are_logged(caplog):
    with caplog.at_level("INFO", logger="torch_jax"):
        (reason,) = reasons(lambda: work(jax(5)))
    (line,) = (r.getMessage() for r in caplog.records if "compiled graph" in r.getMessage())
    assert reason.partition(": ")[2] in line
